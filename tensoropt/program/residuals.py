"""Decide what the backward pass reads: what was saved, or what is regathered or rematerialized, each at most once."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir.body import viewed_operand
from ..ir.graph import Operator, Tensor
from ..reschedule.path import Path
from .gradient_flow import GradientFlow
from .tasks import AGAIN, COMPUTE, COMPUTING, OPERAND, OPERATOR, REMATERIALIZED, RESHARD, RESULT, SHARED, Site, Task, Value


class Residuals:
    """The values that the backward pass reads, and the tasks that make them again where they weren't saved.

    A task is appended to ``tasks`` when the backward pass comes to the first operator whose gradient reads what it makes. It
    waits for the gradients that have arrived there.

    Attributes:
        aliases: operands that are what was made again itself, without a resharding.
    """

    def __init__(self, flow: GradientFlow, tasks: list[Task]) -> None:
        self.flow, self.view, self.tasks = flow, flow.view, tasks
        self.aliases: dict[Value, Value] = {}
        self._operands: dict[tuple[str, int], Value] = {}
        self._shared: dict[str, Value] = {}
        self._results: dict[str, Value] = {}
        self._after: tuple[Value, ...] = ()

    def reads_of(self, op: Operator, after: tuple[Value, ...]) -> Iterator[Value]:
        """Yield what an operator's gradient reads, after appending the tasks that make what wasn't saved.

        An operand whose copy a collective regathers is made even if another operator is the one that reads it.

        Args:
            after: the gradients that have arrived at the operator.
        """
        view, self._after = self.view, after
        exchanged = view.rules[op.name].exchanged(view.strategy.configs[op.name])
        for position, tensor in op.operands:
            is_own = (op.name, position) in view.backward.residual_operands
            if (is_own and not (exchanged and position == 0)) or self._communicates(op, position, tensor):
                self._operand(op, position)
            if is_own:
                # The gradient of an operator that exchanges windows reads those of the forward pass.
                yield self._operands.get((op.name, position), Value(Site(OPERAND, op.name, position)))
        for tensor in op.outputs:
            if tensor.name in view.backward.residual_results:
                yield self._result(tensor)

    def _communicates(self, op: Operator, position: int, tensor: Tensor) -> bool:
        """Return whether a collective regathers an operand, or the shared copy that it comes from, whoever reads it then."""
        if self.view.is_regathered(op, position) and self._path(Site(OPERAND, op.name, position)).communicates:
            return True
        is_shared = tensor.name in self.view.strategy.shared and self.view.reads_regathered(op, position)
        return is_shared and self._path(Site(SHARED, tensor.name)).communicates

    def _path(self, site: Site) -> Path:
        """Return the path to an operand or to a shared copy."""
        return self.flow.path_finder.paths(self.flow.resharded(site)[1]).forward

    def _operand(self, op: Operator, position: int) -> Value:
        """Return an operator's operand as the backward pass reads it, and regather or rematerialize it if need be."""
        key, first = (op.name, position), Value(Site(OPERAND, op.name, position))
        if key in self._operands or self.flow.accumulates(op, position):
            return self._operands.get(key, first)
        tensor = op.operand(position)
        source = self._source(op, position, tensor)
        path = self._path(first.site)
        follows = source.version == AGAIN and not path.communicates
        if not path.steps and source.version == AGAIN:
            self._operands[key] = Value(first.site, AGAIN)
            self.aliases[self._operands[key]] = source
        elif path.steps and (follows or self.view.is_regathered(op, position)):
            stream = self.flow.stream(path)
            self._operands[key] = self._again(RESHARD, first.site, (source,), (first.site,), stream)[0]
        else:
            self._operands[key] = first
        return self._operands[key]

    def _source(self, op: Operator, position: int, tensor: Tensor) -> Value:
        """Return what an operand is resharded from: the result, or the copy that all consumers share; made again if need
        be."""
        result, site = self._result(tensor), Site(SHARED, tensor.name)
        if tensor.name not in self.view.strategy.shared:
            return result
        path = self._path(site)
        follows = result.version == AGAIN and not path.communicates
        if tensor.name not in self._shared and (follows or self.view.reads_regathered(op, position)):
            stream = self.flow.stream(path)
            again = self._again(RESHARD, site, (result,), (site,), stream)[0] if path.steps else result
            self._shared[tensor.name] = again
        return self._shared.get(tensor.name, Value(site))

    def _result(self, tensor: Tensor) -> Value:
        """Return a tensor in its produced layout as the backward pass reads it, and rematerialize it if need be."""
        op, first = self.view.graph.producers[tensor.name], Value(Site(RESULT, tensor.name))
        if tensor.name not in self._results:
            self._results[tensor.name] = first
            if op.name in self.view.rematerialized:
                self._compute(op)
            elif (viewed := viewed_operand(op, tensor.name)) is not None:
                position = next(i for i, operand in op.operands if operand.name == viewed.name)
                if self._operand(op, position).version == AGAIN:
                    self._compute(op)
        return self._results[tensor.name]

    def _compute(self, op: Operator) -> None:
        """Rematerialize an operator: compute its results from operands as the backward pass reads them."""
        reads = tuple(self._operand(op, position) for position, _ in op.operands)
        sites = tuple(Site(RESULT, tensor.name) for tensor in op.outputs)
        values = self._again(COMPUTE, Site(OPERATOR, op.name), reads, sites)
        self._results.update((tensor.name, value) for tensor, value in zip(op.outputs, values, strict=True))

    def _again(
        self, work: str, site: Site, reads: tuple[Value, ...], writes: tuple[Site, ...], stream: str = COMPUTING
    ) -> tuple[Value, ...]:
        """Append a task of the forward pass that is run once more; return what it makes."""
        values = tuple(Value(target, AGAIN) for target in writes)
        self.tasks.append(Task(work, REMATERIALIZED, site, reads, values, after=self._after, stream=stream))
        return values
