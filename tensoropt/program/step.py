"""Write a training step under a strategy as tasks, in the order in which a rank runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..ir.graph import CONSTANT, GRADIENT, PLACEHOLDER, SOURCES, Gradients, Graph, Operator, Tensor, TrainStep
from ..ir.micro_batching import MicroBatch
from ..ir.views import viewed_operand
from ..sharding.consumers import HYPERPARAMETER, LOSS
from ..sharding.resharding import PathFinder
from ..sharding.strategy import StrategyView
from .backward import BackwardPass
from .deferral import StageEnds, divided
from .tasks import (
    ACCUMULATED,
    BACKWARD,
    COMPUTE,
    COMPUTING,
    FEED,
    FORWARD,
    OPERAND,
    OPERATOR,
    RESHARD,
    RESULT,
    SEND,
    SHARED,
    SUM,
    WRITE,
    Site,
    Task,
    Value,
)
from .tasks import GRADIENT as GRADIENT_OF
from .updates import Updates


@dataclass(frozen=True)
class StepProgram:
    """One run of all training steps, or of the whole graph if it has none.

    Attributes:
        tasks: all tasks in order.
        aliases: values that are another value's memory, since nothing has to be done to make them of it.
        n_micro_batches: how many micro-batches were written out; the last but one stands for the last one of those
            between, which are alike.
        passes: of a stage of a pipeline in micro-batches, the index of the task with which each pass begins, and that behind
            the last one. Each micro-batch has three: forward, backward, and what the backward pass defers.
    """

    tasks: tuple[Task, ...]
    aliases: Mapping[Value, Value]
    n_micro_batches: int = 1
    passes: tuple[int, ...] = ()

    def source(self, value: Value) -> Value:
        """Return the value whose memory a value is."""
        while value in self.aliases:
            value = self.aliases[value]
        return value

    def __str__(self) -> str:
        return "\n".join(map(str, self.tasks))


def step_program(
    view: StrategyView,
    path_finder: PathFinder,
    most_micro_batches: int | None = None,
    is_whole: bool = False,
    ends: StageEnds | None = None,
) -> StepProgram:
    """Return the step of a strategy; operators without a config aren't run.

    Args:
        most_micro_batches: how many micro-batches are written out at most.
        is_whole: whether every resharding is a task, even if nothing has to be done, so that the tasks are those of every
            strategy that regathers and rematerializes the same; see :class:`.gradient_flow.GradientFlow`.
        ends: what a stage of a pipeline exchanges with others; None for a model that isn't cut.
    """
    return _Step(view, path_finder, is_whole, ends).written(most_micro_batches)


class _Pass:
    """The forward pass of a micro-batch, or of all that is computed once; and its backward passes."""

    def __init__(self, view: StrategyView, path_finder: PathFinder, micro_batch: MicroBatch | None, is_whole: bool) -> None:
        self.sites: list[Site] = []
        self.shared: set[str] = set()
        self.backward = BackwardPass(view, path_finder, micro_batch, is_whole=is_whole)


class _Step:
    """The step that is being written."""

    def __init__(self, view: StrategyView, path_finder: PathFinder, is_whole: bool, ends: StageEnds | None) -> None:
        self.view, self.path_finder, self.is_whole, self.ends = view, path_finder, is_whole, ends
        self.tasks: list[Task] = []
        self.aliases: dict[Value, Value] = {}
        self._once = _Pass(view, path_finder, None, is_whole)
        self._pass = self._once
        self._micro_batch = -1
        # The values of the forward pass that are made once a step.
        self._made_once: set[Value] = set()
        # Of each backward pass that was written the gradients that nothing passed on, by the gradients' name.
        self._taken: dict[str, dict[Site, Value]] = {}
        self._trained: set[str] = set()
        # The index of the task with which the first backward pass begins.
        self._start = -1
        # The index of the task with which the deferred part of the last backward pass begins; and that of all passes.
        self._deferred = 0
        self._passes: list[int] = []

    @property
    def graph(self) -> Graph:
        return self.view.graph

    def written(self, most_micro_batches: int | None) -> StepProgram:
        """Write the step; see :func:`step_program`."""
        graph, micro_batching = self.graph, self.graph.micro_batching
        needed: Sequence[Operator] = graph.step_operators if graph.train_steps else tuple(graph.operators.values())
        operators = [op for op in needed if (op.updates or op.name) in self.view.interfaces]
        if micro_batching is None:
            for op in sorted(operators, key=lambda op: op.name in graph.late):
                self._write_once(op)
            for taken in graph.backward_passes:
                self._take(taken)
            self._train([step for step in graph.train_steps.values() if step.name not in self._trained])
            return StepProgram(tuple(self.tasks), self.aliases)
        # Metrics and their updates run after all micro-batches, when the memory of these is free again.
        after = [op for op in operators if op.name in micro_batching.after]
        operators = [op for op in operators if op.name not in micro_batching.after]
        for op in operators:
            if op.updates is not None or op.type in SOURCES or graph.n_runs(op.result.name) == 1:
                self._write_once(op)
        n = micro_batching.n if most_micro_batches is None else min(micro_batching.n, most_micro_batches)
        in_micro_batches = [op for op in operators if op.updates is None and graph.n_runs(op.result.name) > 1]
        self._run_micro_batches(in_micro_batches, n, after)
        return StepProgram(tuple(self.tasks), self.aliases, n, tuple(self._passes) if self.ends is not None else ())

    def _write_once(self, op: Operator) -> None:
        """Write an operator that is run once a step, after the gradients and the updates that it waits for."""
        graph = self.graph
        self._train([graph.train_steps[name] for name in op.controls if name in graph.train_steps.keys() - self._trained])
        if op.type in SOURCES:
            # Each micro-batch takes its part of a batch.
            is_taken = op.type == PLACEHOLDER and graph.n_runs(op.result.name) > 1
            self._add(FEED, FORWARD, Site(OPERATOR, op.name), (), () if is_taken else _results(op))
        elif op.type == GRADIENT:
            arrived = self._take(graph.gradients[op.attrs["of"]])
            self._alias(_results(op)[0], arrived[Site(RESULT, graph.operators[op.attrs["at"]].result.name)])
        elif op.updates is not None:
            self._write(op)
        else:
            self._compute(op)

    def _run_micro_batches(self, operators: Sequence[Operator], n: int, after: Sequence[Operator]) -> None:
        """Write micro-batches, the accumulation of their gradients, the way back of the sums, and the operators after."""
        micro_batching = self.graph.micro_batching
        assert micro_batching is not None
        (taken,) = self.graph.backward_passes
        sums: dict[Site, Value] = {}
        rows: dict[Site, list[Value]] = {}
        copies = {name for name in self.graph.tensors if self.graph.accumulates(name)}
        passes = []
        for index in range(n):
            which = MicroBatch(micro_batching, index, self.view.strategy.mesh.n_devices)
            passes.append(_Pass(self.view, self.path_finder, which, self.is_whole))
            self._micro_batch, self._pass = index, passes[-1]
            self._passes.append(len(self.tasks))
            for op in operators:
                if op.type == PLACEHOLDER:
                    self._add(FEED, FORWARD, Site(OPERATOR, op.name), (), _results(op))
                elif op.type != CONSTANT:
                    self._compute(op)
            start = len(self.tasks)
            arrived = self._back_from_loss(taken, copies | self._found(taken) | self._returned)
            written = {value: at for at, task in enumerate(self.tasks[start:], start) for value in task.writes}
            # Each is accumulated as soon as it is there. The later come first, so that indices of earlier ones stay.
            for site, value in sorted(arrived.items(), key=lambda each: -written[each[1]]):
                if site.kind == RESULT:
                    rows.setdefault(site, []).append(value)
                    continue
                total = Value(site, ACCUMULATED, index + 1)
                reads = (*([sums[site]] if index else ()), value)
                self.tasks.insert(written[value] + 1, Task(SUM, BACKWARD, site, reads, (total,)))
                self._deferred += written[value] < self._deferred
                sums[site] = total
            self._passes += [start, self._deferred]
        self._passes.append(len(self.tasks))
        self._micro_batch, self._pass = -1, self._once
        for op in after:
            self._compute_after(op, passes)
        self._start = len(self.tasks)
        self._taken[taken.name] = self._back(sums, self._variables(taken) | self._returned, {})
        self._train([self.graph.train_steps[taken.name]], rows)

    def _add(
        self,
        work: str,
        direction: str,
        site: Site,
        reads: tuple[Value, ...],
        writes: tuple[Value, ...],
        stream: str = COMPUTING,
    ) -> None:
        """Append a task of the pass that is being written."""
        if self._pass is self._once:
            self._made_once.update(writes)
        self._append(Task(work, direction, site, reads, writes, stream=stream))

    def _append(self, task: Task) -> None:
        """Append a task, of the micro-batch that is being written if it is one."""
        if self._micro_batch >= 0 and self._pass is not self._once:
            own = self._own
            reads, writes, after = (tuple(map(own, each)) for each in (task.reads, task.writes, task.after))
            gradients = tuple((index, own(value)) for index, value in task.gradients)
            task = Task(
                task.work, task.direction, task.site, reads, writes, gradients, after, self._micro_batch, task.stream
            )
        self.tasks.append(task)

    def _own(self, value: Value) -> Value:
        """Return a value as that of the micro-batch that is being written, unless it is made once a step."""
        if self._pass is self._once or value.micro_batch >= 0 or value in self._made_once:
            return value
        return Value(value.site, value.version, value.n_summed, self._micro_batch, value.backward_pass)

    def _alias(self, value: Value, source: Value) -> None:
        """Note that a value is another one's memory."""
        if self._pass is self._once:
            self._made_once.add(value)
        self.aliases[self._own(value)] = self._own(source)

    # The forward pass

    def _write(self, op: Operator) -> None:
        """Write an operator that writes to a variable in place, or reads it after such a write."""
        self._overwrite(op, [self._operand(Site(OPERAND, op.name, i), each) for i, each in op.operands])

    def _overwrite(self, op: Operator, reads: Sequence[Value]) -> None:
        """Write an operator that writes to a variable in place, or reads it, after its operands."""
        assert op.updates is not None
        variable = Value(Site(RESULT, self.graph.operators[op.updates].result.name))
        self._add(WRITE, FORWARD, Site(OPERATOR, op.name), (variable, *reads), _results(op))
        for result in _results(op):
            self._alias(result, variable)

    def _compute(self, op: Operator) -> None:
        """Write an operator, after the reshardings of its operands."""
        reads = []
        for position, tensor in op.operands:
            site = Site(OPERAND, op.name, position)
            if self._pass is self._once or not self._pass.backward.flow.accumulates(op, position):
                reads.append(self._operand(site, tensor))
                continue
            reads.append(Value(site))
            if Value(site) not in self._made_once:
                # Resharded once for all micro-batches.
                current, self._pass = self._pass, self._once
                self._operand(site, tensor)
                self._pass = current
        self._pass.sites.append(Site(OPERATOR, op.name))
        self._add(COMPUTE, FORWARD, Site(OPERATOR, op.name), tuple(reads), _results(op))
        for tensor in op.outputs:
            viewed = viewed_operand(op, tensor.name)
            if viewed is not None:
                position = next(i for i, operand in op.operands if operand.name == viewed.name)
                self._alias(Value(Site(RESULT, tensor.name)), Value(Site(OPERAND, op.name, position)))

    def _compute_after(self, op: Operator, passes: Sequence[_Pass]) -> None:
        """Write an operator that runs after all micro-batches, and reads what each of them computed."""
        reads = []
        for position, tensor in op.operands:
            site = Site(OPERAND, op.name, position)
            each_pass = enumerate(passes) if self.graph.n_runs(tensor.name) > 1 else [(-1, self._once)]
            for self._micro_batch, self._pass in each_pass:
                reads.append(self._own(self._operand(site, tensor)))
        self._micro_batch, self._pass = -1, self._once
        if op.updates is None:
            self._add(COMPUTE, FORWARD, Site(OPERATOR, op.name), tuple(reads), _results(op))
        else:
            self._overwrite(op, reads)

    def _operand(self, site: Site, tensor: Tensor) -> Value:
        """Write the resharding of a tensor to an operand, by way of its shared copy if it has one."""
        source = Value(Site(RESULT, tensor.name))
        if self._pass.backward.flow.has_copy(tensor):
            copy = Site(SHARED, tensor.name)
            if tensor.name not in self._pass.shared:
                self._pass.shared.add(tensor.name)
                self._reshard(copy, source)
            source = Value(copy)
        self._reshard(site, source)
        return Value(site)

    def _reshard(self, site: Site, source: Value) -> None:
        """Write the resharding to an operand or to a shared copy."""
        flow = self._pass.backward.flow
        self._pass.sites.append(site)
        path = None if flow.is_whole else self.path_finder.paths(flow.resharded(site)[1]).forward
        if path is None or path.steps:
            self._add(RESHARD, FORWARD, site, (source,), (Value(site),), flow.stream(path))
        else:
            self._alias(Value(site), source)

    # The backward pass

    def _take(self, taken: Gradients) -> dict[Site, Value]:
        """Write the backward pass that takes gradients, once; return those that nothing passes on."""
        if taken.name not in self._taken:
            if self._start < 0:
                self._start = len(self.tasks)
            starts = self._variables(taken) | self._found(taken) | self._returned
            self._taken[taken.name] = self._back_from_loss(taken, starts)
        return self._taken[taken.name]

    def _train(self, steps: Sequence[TrainStep], rows: Mapping[Site, Sequence[Value]] | None = None) -> None:
        """Write the updates of training steps, after the gradients that they need.

        Args:
            rows: the gradients of lookups' results, where micro-batches have several.
        """
        updates = Updates(self.view, self.path_finder, self.tasks, self.aliases)
        for step in steps:
            self._trained.add(step.name)
            arrived: dict[Site, Value] = {}
            if step.loss is not None:
                arrived = self._take(Gradients(step.name, step.loss, step.variables))
            sites = (Site(OPERAND, step.name, HYPERPARAMETER - i) for i in range(len(step.optimizer.tensors)))
            hyperparameters = [self._operand(*each) for each in zip(sites, step.optimizer.tensors, strict=True)]
            given = {name: self._given(name, tensor) for name, tensor in zip(step.variables, step.gradients, strict=False)}
            found = {site: [value] for site, value in arrived.items()} if rows is None else rows
            updates.add(step, arrived, found, given, hyperparameters)
        if steps:
            updates.write(max(self._start, 0))

    def _given(self, variable: str, tensor: Tensor) -> Value:
        """Write the resharding of a tensor that a variable is updated by; return what it becomes."""
        if self.graph.producers[tensor.name].updates == variable:
            return Value(Site(RESULT, tensor.name))
        position = self.graph.given_gradients[variable].index(tensor)
        return self._operand(Site(OPERAND, variable, position), tensor)

    def _variables(self, taken: Gradients) -> set[str]:
        """Return the names of the variables' tensors with respect to which gradients are taken."""
        return {self.graph.operators[name].result.name for name in taken.variables if name not in self.graph.lookups}

    def _found(self, taken: Gradients) -> set[str]:
        """Return the names of what lookups find in variables that are updated by rows."""
        lookups = [name for variable in taken.variables for name in self.graph.lookups.get(variable, ())]
        return {self.graph.operators[name].result.name for name in lookups}

    @property
    def _returned(self) -> frozenset[str]:
        """The names of the tensors whose gradients are sent back to other stages."""
        return frozenset() if self.ends is None else self.ends.returned

    def _back_from_loss(self, taken: Gradients, starts: set[str]) -> dict[Site, Value]:
        """Write the backward pass from a loss; return the gradients that nothing passes on, in this stage."""
        site = Site(OPERAND, taken.name, LOSS)
        self._operand(site, taken.loss)
        # The gradient of the loss is a constant.
        seed, start = Value(site, GRADIENT_OF), len(self.tasks)
        self._add(FEED, BACKWARD, site, (Value(site),), (seed,))
        arrived = self._back({site: seed}, starts, {taken.name: taken.loss})
        sent = [value for name in self._returned if (value := arrived.pop(Site(RESULT, name), None)) is not None]
        first, deferred = self.tasks[start:], list[Task]()
        if self.ends is not None and self.ends.divides:
            first, deferred = divided(first, sent, self.aliases, self.graph.operators)
        first += [Task(SEND, BACKWARD, site, tuple(sent), (), micro_batch=self._micro_batch)] * bool(sent)
        self.tasks[start:] = [*first, *deferred]
        self._deferred = start + len(first)
        return arrived

    def _back(
        self, given: Mapping[Site, Value], starts: set[str], losses: Mapping[str, Tensor]
    ) -> dict[Site, Value]:
        """Write a backward pass; return the gradients that nothing passes on."""
        backward = self._pass.backward
        for task in backward.run(self._pass.sites, starts, given, losses):
            self._append(task)
        for value, source in backward.aliases.items():
            self._alias(value, source)
        arrived = {site: self._own(value) for site, value in backward.arrived.items()}
        backward.arrived.clear()
        return arrived


def _results(op: Operator) -> tuple[Value, ...]:
    """Return the values of an operator's results."""
    return tuple(Value(Site(RESULT, tensor.name)) for tensor in op.outputs)
