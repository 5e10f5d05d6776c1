"""Write the forward pass of a step as tasks: operators, and the reshardings of their operands."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ..ir.body import viewed_operand
from ..ir.graph import Operator, Tensor
from ..ir.micro_batching import MicroBatch
from ..reschedule.layout import Layout
from ..sharding.consumers import HYPERPARAMETER, LOSS
from .backward import BackwardPass
from .gradient_flow import GradientFlow
from .tasks import (
    COMPUTE,
    COMPUTING,
    FETCHED,
    FORWARD,
    GLOBAL,
    OPERAND,
    OPERATOR,
    RESHARD,
    RESULT,
    SHARED,
    WRITE,
    Site,
    Task,
    Value,
)


class ForwardPass:
    """The forward pass of a micro-batch, or of all that is computed once a step; and its backward passes.

    A function without gradients reshards each tensor once to each layout. With gradients, each operand is resharded by
    itself, since its gradient goes back the same way.

    Attributes:
        tasks, aliases: those of the step, which all of its passes write to; see :class:`.step.StepProgram`.
        sites: the operators, operands and shared copies in the order in which they are made.
        made: the values that the pass makes.
    """

    def __init__(
        self,
        flow: GradientFlow,
        tasks: list[Task],
        aliases: dict[Value, Value],
        once: ForwardPass | None,
        micro_batch: MicroBatch | None,
        is_training: bool,
        uses_buckets: bool,
    ) -> None:
        """Begin without tasks.

        Args:
            once: for a micro-batch, the pass of all that is computed once.
            uses_buckets: whether small gradients are summed together.
        """
        self.flow, self.view, self.path_finder, self.tasks, self.aliases = flow, flow.view, flow.path_finder, tasks, aliases
        self.once, self.is_training = once, is_training
        self.sites: list[Site] = []
        self.made: set[Value] = set()
        self.backward = BackwardPass(flow, micro_batch, uses_buckets)
        self.micro_batch = micro_batch.index if micro_batch is not None else -1
        self._copies: dict[tuple[str, Layout], Value] = {}

    def add(self, work: str, site: Site, reads: Sequence[Value], writes: Sequence[Value], stream: str = COMPUTING) -> None:
        self.append(Task(work, FORWARD, site, tuple(reads), tuple(writes), stream=stream))
        self.made.update(map(self.own, writes))

    def append(self, task: Task) -> None:
        """Append a task, of the micro-batch if it is one's."""
        if self.once is not None:
            reads, writes, after = (tuple(map(self.own, values)) for values in (task.reads, task.writes, task.after))
            gradients = tuple((index, self.own(value)) for index, value in task.gradients)
            own = gradients, after, self.micro_batch, task.stream, task.step
            task = Task(task.work, task.direction, task.site, reads, writes, *own)
        self.tasks.append(task)

    def own(self, value: Value) -> Value:
        """Return a value as that of the micro-batch, unless it is made once a step."""
        if self.once is None or value.micro_batch >= 0 or value in self.once.made:
            return value
        return Value(value.site, value.version, value.n_summed, self.micro_batch, value.backward_pass)

    def alias(self, value: Value, source: Value) -> None:
        """Note that a value is another one's memory."""
        value = self.own(value)
        self.made.add(value)
        self.aliases[value] = self.own(source)

    def write(self, op: Operator) -> None:
        """Write an operator that writes to a variable in place, or reads it after that."""
        assert op.updates is not None
        reads = [self.operand(Site(OPERAND, op.name, i), tensor) for i, tensor in op.operands]
        variable = Value(Site(RESULT, self.view.graph.operators[op.updates].result.name))
        self.add(WRITE, Site(OPERATOR, op.name), (variable, *reads), results_of(op))
        for result in results_of(op):
            self.alias(result, variable)

    def compute(self, op: Operator, given: Collection[str] = ()) -> None:
        """Write an operator, after the reshardings of its operands; results whose tensors are given aren't its own."""
        reads = []
        for position, tensor in op.operands:
            # What is made once a step is resharded once for all micro-batches.
            by = self.once if self.once is not None and self.view.accumulates(op, position) else self
            reads.append(by.operand(Site(OPERAND, op.name, position), tensor))
        self.sites.append(Site(OPERATOR, op.name))
        self.add(COMPUTE, Site(OPERATOR, op.name), reads, [v for v in results_of(op) if v.site.name not in given])
        for tensor in op.outputs:
            viewed = viewed_operand(op, tensor.name)
            if viewed is not None:
                position = next(i for i, operand in op.operands if operand.name == viewed.name)
                self.alias(Value(Site(RESULT, tensor.name)), Value(Site(OPERAND, op.name, position)))

    def operand(self, site: Site, tensor: Tensor) -> Value:
        """Write the resharding of a tensor to an operand or a fetch, by way of its shared copy if it has one."""
        value = Value(site)
        if self.own(value) in self.made:
            return value
        is_of_step = site.kind in FETCHED or site.position <= HYPERPARAMETER
        is_shared = (is_of_step or not self.is_training) and not self.flow.is_whole
        if is_shared or site.position == LOSS:
            copy = self._copies.setdefault((tensor.name, self.flow.resharded(site)[1].sharding.layout), value)
            if copy != value and is_shared:
                self.alias(value, copy)
                return value
        self._reshard(site, self.source(tensor))
        return value

    def source(self, tensor: Tensor) -> Value:
        """Write the shared copy of a tensor if it has one; return what its consumers reshard: that, or the tensor itself."""
        if self.once is None and self.view.graph.n_runs(tensor.name) > 1:
            return Value(Site(GLOBAL, tensor.name))  # what micro-batches computed, joined
        shared, produced = Value(Site(SHARED, tensor.name)), Value(Site(RESULT, tensor.name))
        if not self.flow.has_copy(tensor):
            return produced
        if self.own(shared) not in self.made:
            self._reshard(shared.site, produced)
        return shared

    def _reshard(self, site: Site, source: Value) -> None:
        """Write the resharding to an operand or to a shared copy."""
        self.sites.append(site)
        path = None if self.flow.is_whole else self.path_finder.paths(self.flow.resharded(site)[1]).forward
        if path is None or path.steps:
            self.add(RESHARD, site, (source,), (Value(site),), self.flow.stream(path))
        else:
            self.alias(Value(site), source)

    def back(self, seeds: Mapping[Site, Value], starts: Collection[str], number: int) -> dict[Site, Value]:
        """Write a backward pass; return the gradients that nothing passes on. See :meth:`.BackwardPass.run`."""
        for task in self.backward.run(self.sites, starts, seeds, number):
            self.append(task)
        for value, source in self.backward.aliases.items():
            self.alias(value, source)
        arrived = {site: self.own(value) for site, value in self.backward.arrived.items()}
        self.backward.arrived.clear()
        return arrived


def results_of(op: Operator) -> tuple[Value, ...]:
    return tuple(Value(Site(RESULT, tensor.name)) for tensor in op.outputs)
