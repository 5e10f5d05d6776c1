"""Write what the backward pass reads and wasn't saved: regathered or rematerialized, each at most once.

:meth:`..sharding.strategy.StrategyView.residual` decides how each copy is got.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..ir.body import viewed_operand
from ..ir.graph import Operator, Tensor
from ..reschedule.path import Path
from ..sharding.strategy import ONCE, is_made_again
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

        Args:
            after: the gradients that have arrived at the operator.
        """
        view, self._after = self.view, after
        for position, _ in op.operands:
            if view.residual(op, position).is_asked:
                self._operand(op, position)
            if (op.name, position) in view.backward.residual_operands:
                # The gradient of an operator that exchanges windows reads those of the forward pass.
                yield self._operands.get((op.name, position), Value(Site(OPERAND, op.name, position)))
        for tensor in op.outputs:
            if tensor.name in view.backward.residual_results:
                yield self._result(tensor)

    def _path(self, site: Site) -> Path:
        """Return the path to an operand or to a shared copy."""
        return self.flow.path_finder.paths(self.flow.resharded(site)[1]).forward

    def _operand(self, op: Operator, position: int) -> Value:
        """Return an operator's operand as the backward pass reads it, and regather or rematerialize it if need be."""
        key, first, residual = (op.name, position), Value(Site(OPERAND, op.name, position)), self.view.residual(op, position)
        if key in self._operands or residual.copy == ONCE:
            return self._operands.get(key, first)
        source = self._source(op.operand(position), residual.shared)
        path, self._operands[key] = self._path(first.site), first
        if is_made_again(residual.copy, source.version == AGAIN):
            if path.steps:
                stream = self.flow.stream(path)
                self._operands[key] = self._again(RESHARD, first.site, (source,), (first.site,), stream)[0]
            else:
                self._operands[key] = Value(first.site, AGAIN)
                self.aliases[self._operands[key]] = source
        return self._operands[key]

    def _source(self, tensor: Tensor, how: int) -> Value:
        """Return what an operand is resharded from: the result, or the copy that all consumers share; made again if need
        be."""
        result, site = self._result(tensor), Site(SHARED, tensor.name)
        if tensor.name not in self.view.strategy.shared:
            return result
        if tensor.name not in self._shared and is_made_again(how, result.version == AGAIN):
            path = self._path(site)
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
