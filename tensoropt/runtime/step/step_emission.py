"""Emit a function from its program, pass by pass: every operator of the function comes of a task.

All that a micro-batch computes waits for what the pass before has computed (:mod:`...lowering.pass_chain`), so the residuals
of only those micro-batches are alive whose backward pass is still to come. Gradients of what is computed once a step are
accumulated where it was resharded for all micro-batches, and go back from there after the last one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import tensorflow as tf

from ...ir.graph import Operator, Tensor, TrainStep
from ...ir.micro_batching import MicroBatch
from ...lowering.emission import Sources, TaskEmission
from ...lowering.operators import Values
from ...lowering.order import BackwardRecord
from ...lowering.pass_chain import BackwardOperators, PassChain
from ...lowering.resharding.reshard import Resharder
from ...optimizers.running_optimizer import Emission, PendingUpdate
from ...program.gradient_flow import GradientFlow
from ...program.step import StepProgram
from ...program.tasks import ACCUMULATED, BACKWARD, FEED, FORWARD, JOIN, OPERAND, RESULT, SEND, UPDATE, Site, Task, Value
from ...sharding.consumers import HYPERPARAMETER
from ...sharding.strategy import StrategyView
from .stage_state import StageState

SCOPE = "micro_batch"
"""The name scope of a micro-batch's operators; the micro-batch's index is appended to it."""


@dataclass(frozen=True)
class Exchange:
    """What a stage exchanges with others.

    Attributes:
        send: emits the sending of a tensor's values, given its name, the micro-batch and, of its gradients, the step, and
            returns values that are there when they are sent.
        gradient: emits the reception of a tensor's gradients, given its name, the micro-batch and the training step; returns
            them.
        update: emits a training step's update, when it has the sums that it needs of others.
    """

    send: Callable[[str, Values, int, str], Values]
    gradient: Callable[[str, int, str], Values]
    update: Callable[[str, PendingUpdate], None] = lambda step, update: None


class StepEmission(TaskEmission):
    """The emission of a function: of each micro-batch, or of the batch at once, a forward and a backward pass."""

    def __init__(
        self,
        program: StepProgram,
        view: StrategyView,
        resharder: Resharder,
        sources: Sources,
        state: StageState,
        chain: PassChain,
        exchange: Exchange,
        micro_batches: Sequence[MicroBatch] = (),
    ) -> None:
        """Take a program.

        Args:
            state: the stage's variables and optimizers.
            chain: the passes of the rank, among which those of the program are.
            exchange: how the stage sends tensors to others, and receives gradients.
        """
        flow, is_training = GradientFlow(view, state.path_finder), any(task.direction != FORWARD for task in program.tasks)
        super().__init__(flow, resharder, program.aliases, sources, state.update, is_training, micro_batches)
        self._program, self._state, self._pending_steps = program, state, list(program.train_steps)
        self._passes, self._chain, self._exchange = program.passes, chain, exchange
        self.flow.losses.update((name, loss) for name, loss in program.losses.items() if loss is not None)
        # What was sent in the last pass, and values that are there when it has been.
        self._sent: list[tf.Tensor] = []
        self._left: list[tf.Tensor] = []
        self._updates: dict[str, dict[str, Task]] = {name: {} for name in program.train_steps}
        self._n_updates = Counter(task.step for task in program.tasks if task.work == UPDATE)
        self._records: dict[int, BackwardRecord] = {}
        # What each micro-batch computes that is read when its passes are over; and the gradients accumulated so far.
        self._results: dict[int, list[Value]] = {}
        for task in program.tasks:
            is_begin = task.work == FEED and task.direction == BACKWARD
            for value in task.reads if is_begin or task.work == JOIN or task.is_of_rows else ():
                self._results.setdefault(value.micro_batch, []).append(value)
        self._sums: dict[tuple[Site, int], Values] = {}

    def begin(self) -> None:
        """Emit what comes before all passes."""
        self.run(self._program.tasks[: self._passes[0]])

    def forward(self, index: int) -> None:
        """Emit the forward pass of a micro-batch, behind all passes that were emitted before."""
        start = _n_operators()
        self._run_pass(index, 0)
        self._chain.add_forward(self, index, start, [*self._made(index), *self._sent, *self._left])

    def backward(self, index: int, is_deferring: bool = False) -> None:
        """Emit the backward pass of a micro-batch, with what it defers unless that is a pass of its own."""
        start, n_forward = self._chain.begin_backward(self, index)
        self._run_pass(index, 1)
        has_more = self._passes[3 * index + 2] < self._passes[3 * index + 3]
        self._add_backward(index, start, n_forward, not is_deferring and not has_more)
        if has_more and not is_deferring:
            self.parameters(index)

    def parameters(self, index: int) -> None:
        """Emit what the backward pass of a micro-batch has deferred."""
        start = _n_operators()
        self._run_pass(index, 2)
        self._add_backward(index, start, start, True)

    def _add_backward(self, index: int, start: int, n_forward: int, is_last: bool) -> None:
        """Add a backward pass that has been emitted to those of the rank."""
        sums = (value for values in self._sums.values() for value in values)
        emitted = BackwardOperators(start, n_forward, self._records[index], [tensor.op for tensor in self._sent])
        # The call that sends also frees what has died of Python's.
        self._chain.add_backward(emitted, is_last, [*self._made(index), *sums, *self._sent, *self._left])

    def finish(self) -> list[Values]:
        """Emit what comes after all passes, and the updates; return the values of the tensors that the function returns."""
        self.record = BackwardRecord()
        self.run(self._program.tasks[self._passes[-1] :])
        for name in tuple(self._pending_steps):
            self._apply(name)
        return [self.value(value) for value in self._program.fetched]

    def end(self) -> None:
        """Put the last backward pass and the updates in order, when all have been emitted."""
        self._chain.end(self.record)

    def unread(self, index: int) -> list[tf.Tensor]:
        """Return the numbers that operators of a micro-batch have computed so far and that no operator has read."""
        operators = [self.view.graph.operators[name] for name, micro_batch in self._emitted if micro_batch == index]
        read = {tensor.name for op in operators for _, tensor in op.operands}
        last = [self.at(Site(RESULT, t.name), index) for op in operators for t in op.outputs if t.name not in read]
        return [value for values in last if values[0].dtype.is_floating for value in values]

    def local(self, tensor: Tensor) -> Values:
        """Return a tensor's local values in its produced layout; those of a variable, even if no task reads it."""
        value = Value(Site(RESULT, tensor.name))
        if not self.has(value):
            self.values[value] = self._sources[tensor.name](-1)
        return self.value(value)

    def _begin_backward(self, task: Task) -> None:
        """Emit the gradient of a loss, or what another stage sends of a tensor's."""
        if task.reads:
            super()._begin_backward(task)
            return
        values = self._exchange.gradient(task.site.name, task.micro_batch, task.step)
        self.values[task.writes[0]] = values
        self._gates.setdefault(task.micro_batch, []).extend(value.op for value in values)

    def _send(self, task: Task) -> None:
        """Emit the sending of a tensor to a later stage, or of its gradient to an earlier one."""
        values, is_gradient = self.value(task.reads[0]), task.direction == BACKWARD
        self._left += self._exchange.send(task.site.name, values, task.micro_batch, task.step)
        self._sent += values if is_gradient else self.at(Site(RESULT, task.site.name), task.micro_batch)

    def _emit(self, task: Task) -> None:
        if task.work == UPDATE:
            self._update(task)
        elif task.work == SEND:
            self._send(task)
        else:
            super()._emit(task)

    def _run_pass(self, index: int, number: int) -> None:
        """Emit a micro-batch's forward pass (0), its backward pass (1), or what that defers (2)."""
        begin, end = self._passes[3 * index + number : 3 * index + number + 2]
        self.record = self._records.setdefault(index, BackwardRecord())
        self._sent, self._left = [], []
        is_scoped = bool(self.micro_batches) and number == 0
        with self._chain.behind(), tf.name_scope(f"{SCOPE}_{index}") if is_scoped else nullcontext():
            for is_once, tasks in groupby(self._program.tasks[begin:end], self._is_once):
                # What is done once mustn't wait for the micro-batch before.
                with tf.control_dependencies(None) if is_once else nullcontext():
                    self.run(list(tasks))

    def _is_once(self, task: Task) -> bool:
        """Return whether a task of a pass is done once for all micro-batches."""
        return bool(self.micro_batches) and task.micro_batch < 0 and task.direction == FORWARD

    def _made(self, index: int) -> Iterator[tf.Tensor]:
        """Yield what a micro-batch has computed so far that is read when its passes are over."""
        for value in self._results.get(index, ()):
            if self.has(value):
                yield from self.values_or_none(value) or ()

    def _sum(self, task: Task) -> None:
        """Emit the sum of two gradients, or of one and those that were accumulated before."""
        total = task.writes[0]
        if total.version != ACCUMULATED:
            super()._sum(task)
            return
        with tf.name_scope(f"{SCOPE}_{total.n_summed - 1}/accumulated"):
            super()._sum(task)
        self._sums[task.site, total.backward_pass] = self.values[total] or []

    def hyperparameter(self, step: TrainStep, tensor: Tensor) -> Values:
        """Return a value that the optimizer of a training step reads, on every rank."""
        return self.at(Site(OPERAND, step.name, HYPERPARAMETER - step.optimizer.tensors.index(tensor)))

    def _scaled(self, gradients: str, losses: Values) -> Values:
        step = self.view.graph.train_steps.get(gradients)
        if step is None or step.loss is None:
            return losses
        return self._state.optimizers[gradients].scaled(losses)

    def _write(self, op: Operator, operands: list[Values]) -> list[Values]:
        """Emit an operator that updates a variable, or reads it, behind the training steps that it waits for."""
        for name in op.controls:
            self._apply(name)
        return super()._write(op, operands)

    def _update(self, task: Task) -> None:
        """Emit the updates of steps whose gradients have all been emitted; those of one variable in the steps' order."""
        self._updates[task.step][task.site.name] = task
        waiting: set[str] = set()
        for name in tuple(self._pending_steps):
            variables, n = self.view.graph.train_steps[name].variables, self._n_updates[name]
            if not 0 < n == len(self._updates[name]) or not waiting.isdisjoint(variables):
                waiting.update(variables)
            else:
                self._apply(name)

    def _apply(self, name: str) -> None:
        """Emit the update of a training step that the function runs, once."""
        if name not in self._pending_steps:
            return
        self._pending_steps.remove(name)
        graph, step = self.view.graph, self.view.graph.train_steps[name]
        # For each parameter its gradient, or those of the rows that its lookups found; None for one that isn't there.
        gradients: list[list[Values | None]] = []
        indices: list[list[Values]] = []
        for variable in step.variables:
            task = self._updates[name].get(variable)
            reads = () if task is None else task.reads
            read = {(value.site, value.micro_batch): self.values_or_none(value) for value in reads}
            lookups = [
                (graph.operators[lookup], index)
                for lookup in (graph.lookups.get(variable, ()) if task is not None else ())
                for index in self._indices(graph.operators[lookup])
            ]
            if lookups:
                by_lookup = (read.get((Site(RESULT, op.result.name), index)) for op, index in lookups)
                gradients.append([self._when_all_ran(values) for values in by_lookup])
            else:
                gradients.append([next(iter(read.values()), None)])
            indices.append([self.looked_up_indices(op, index) for op, index in lookups])
        emission = Emission(
            lambda index: self.local(graph.operators[step.variables[index]].result), gradients, indices,
            partial(self.on_every_rank, step.name), partial(self.hyperparameter, step),
        )  # fmt: skip
        self._exchange.update(name, self._state.update_of(step, emission))

    def _when_all_ran(self, rows: Values | None) -> Values | None:
        """Return gradients of rows when all passes are over: joined before, they would be alive beside what these use."""
        if rows is None or not self.micro_batches:
            return rows
        with self._chain.behind():
            return [tf.identity(value) for value in rows]

    def _indices(self, op: Operator) -> Iterable[int]:
        """Return the indices of the micro-batches that run an operator; -1 for one that is run once a step."""
        return range(len(self.micro_batches)) if self.view.graph.n_runs(op.result.name) > 1 else (-1,)


def _n_operators() -> int:
    """Return the number of operators of the graph that is being built."""
    return int(tf.compat.v1.get_default_graph().version)
