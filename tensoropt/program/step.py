"""Write a training step under a strategy as tasks, in the order in which a rank runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..ir.graph import CONSTANT, PLACEHOLDER, SOURCES, Gradients, Graph, Operator, Tensor
from ..ir.micro_batching import MicroBatch
from ..ir.views import viewed_operand
from ..rules.rule import OperandSharding
from ..sharding.consumers import LOSS, Consumer, step_sharding
from ..sharding.resharding import Resharding, Router
from ..sharding.strategy import StrategyView
from ..sharding.update_resharding import row_reshardings
from .backward import BackwardPass
from .tasks import (
    ACCUMULATED,
    BACKWARD,
    COMPUTE,
    COMPUTING,
    FEED,
    FORWARD,
    GRADIENT,
    OPERAND,
    OPERATOR,
    RESHARD,
    RESULT,
    RETURNED,
    SHARED,
    SUM,
    UPDATE,
    WRITE,
    Place,
    Task,
    Value,
)


@dataclass(frozen=True)
class StepProgram:
    """One run of all training steps, or of the whole graph if it has none.

    Attributes:
        tasks: all tasks in order.
        aliases: values that are another value's memory, since nothing has to be done to make them of it.
        n_micro_batches: how many micro-batches were written out; the last but one stands for the last one of those
            between, which are alike.
    """

    tasks: tuple[Task, ...]
    aliases: Mapping[Value, Value]
    n_micro_batches: int = 1

    def source(self, value: Value) -> Value:
        """Return the value whose memory a value is."""
        while value in self.aliases:
            value = self.aliases[value]
        return value

    def __str__(self) -> str:
        return "\n".join(map(str, self.tasks))


def step_program(view: StrategyView, router: Router, most_micro_batches: int | None = None) -> StepProgram:
    """Return the step of a strategy; operators without a config aren't run.

    Args:
        most_micro_batches: how many micro-batches are written out at most.
    """
    return _Step(view, router).written(most_micro_batches)


class _Pass:
    """The forward pass of a micro-batch, or of all that is computed once; and its backward passes."""

    def __init__(self, view: StrategyView, router: Router, micro_batch: MicroBatch | None) -> None:
        self.places: list[Place] = []
        self.shared: set[str] = set()
        self.backward = BackwardPass(view, router, micro_batch)


class _Step:
    """The step that is being written."""

    def __init__(self, view: StrategyView, router: Router) -> None:
        self.view, self.router = view, router
        self.tasks: list[Task] = []
        self.aliases: dict[Value, Value] = {}
        self._once = _Pass(view, router, None)
        self._pass = self._once
        self._micro_batch = -1
        # The values of the forward pass that are made once a step.
        self._made_once: set[Value] = set()

    @property
    def graph(self) -> Graph:
        return self.view.graph

    def written(self, most_micro_batches: int | None) -> StepProgram:
        """Write the step; see :func:`step_program`."""
        graph, micro_batching = self.graph, self.graph.micro_batching
        needed: Sequence[Operator] = graph.step_operators if graph.train_steps else tuple(graph.operators.values())
        operators = [op for op in needed if (op.updates or op.name) in self.view.interfaces]
        if micro_batching is not None:
            # Metrics and their updates run after all micro-batches, when the memory of these is free again.
            operators = [op for op in operators if op.name not in micro_batching.after]
        for op in operators:
            if op.type in SOURCES:
                # Each micro-batch takes its part of a batch.
                is_taken = op.type == PLACEHOLDER and graph.n_runs(op.result.name) > 1
                self._add(FEED, FORWARD, Place(OPERATOR, op.name), (), () if is_taken else _results(op))
            elif op.updates is not None:
                self._write(op, graph.operators[op.updates].result)
            elif graph.n_runs(op.result.name) == 1:
                self._compute(op)
        if micro_batching is None:
            start, updates = len(self.tasks), _Updates()
            for taken in graph.backward_passes:
                arrived = self._back_from_loss(taken, self._variables(taken) | self._found(taken))
                updates.add(graph, taken, arrived, {place: [value] for place, value in arrived.items()})
            self._update(start, updates)
            return StepProgram(tuple(self.tasks), self.aliases)
        n = micro_batching.n if most_micro_batches is None else min(micro_batching.n, most_micro_batches)
        in_micro_batches = [op for op in operators if op.updates is None and graph.n_runs(op.result.name) > 1]
        self._run_micro_batches(in_micro_batches, n)
        return StepProgram(tuple(self.tasks), self.aliases, n)

    def _run_micro_batches(self, operators: Sequence[Operator], n: int) -> None:
        """Write micro-batches, the accumulation of their gradients, and the way back of the sums."""
        micro_batching = self.graph.micro_batching
        assert micro_batching is not None
        (taken,) = self.graph.backward_passes
        sums: dict[Place, Value] = {}
        rows: dict[Place, list[Value]] = {}
        copies = {name for name in self.graph.tensors if self.graph.accumulates(name)}
        for index in range(n):
            which = MicroBatch(micro_batching, index, self.view.strategy.mesh.n_devices)
            self._micro_batch, self._pass = index, _Pass(self.view, self.router, which)
            for op in operators:
                if op.type == PLACEHOLDER:
                    self._add(FEED, FORWARD, Place(OPERATOR, op.name), (), _results(op))
                elif op.type != CONSTANT:
                    self._compute(op)
            start = len(self.tasks)
            arrived = self._back_from_loss(taken, copies | self._found(taken))
            written = {value: at for at, task in enumerate(self.tasks[start:], start) for value in task.writes}
            # Each is accumulated as soon as it is there. The later come first, so that indices of earlier ones stay.
            for place, value in sorted(arrived.items(), key=lambda each: -written[each[1]]):
                if place.kind == RESULT:
                    rows.setdefault(place, []).append(value)
                    continue
                total = Value(place, ACCUMULATED, index + 1)
                reads = (*([sums[place]] if index else ()), value)
                self.tasks.insert(written[value] + 1, Task(SUM, BACKWARD, place, reads, (total,)))
                sums[place] = total
        self._micro_batch, self._pass, start = -1, self._once, len(self.tasks)
        arrived = self._back(sums, self._variables(taken), {})
        updates = _Updates()
        updates.add(self.graph, taken, arrived, rows)
        self._update(start, updates)

    def _add(
        self,
        work: str,
        direction: str,
        place: Place,
        reads: tuple[Value, ...],
        writes: tuple[Value, ...],
        stream: str = COMPUTING,
    ) -> None:
        """Append a task of the pass that is being written."""
        if self._pass is self._once:
            self._made_once.update(writes)
        self._append(Task(work, direction, place, reads, writes, stream=stream))

    def _append(self, task: Task) -> None:
        """Append a task, of the micro-batch that is being written if it is one."""
        own = self._own
        self.tasks.append(
            task
            if self._micro_batch < 0 or self._pass is self._once
            else replace(
                task,
                reads=tuple(map(own, task.reads)),
                writes=tuple(map(own, task.writes)),
                gradients=tuple((index, own(value)) for index, value in task.gradients),
                after=tuple(map(own, task.after)),
                micro_batch=self._micro_batch,
            )
        )

    def _own(self, value: Value) -> Value:
        """Return a value as that of the micro-batch that is being written, unless it is made once a step."""
        is_once = self._pass is self._once or value in self._made_once or value.micro_batch >= 0
        return value if is_once else value._replace(micro_batch=self._micro_batch)

    def _alias(self, value: Value, source: Value) -> None:
        """Note that a value is another one's memory."""
        if self._pass is self._once:
            self._made_once.add(value)
        self.aliases[self._own(value)] = self._own(source)

    # The forward pass

    def _write(self, op: Operator, variable: Tensor) -> None:
        """Write an operator that writes to a variable in place, or reads it after such a write."""
        sharding = OperandSharding(self.view.layout(variable), None)
        reads = [self._operand(Place(OPERAND, op.name, position), tensor, sharding) for position, tensor in op.operands]
        self._add(WRITE, FORWARD, Place(OPERATOR, op.name), (Value(Place(RESULT, variable.name)), *reads), _results(op))
        for result in _results(op):
            self._alias(result, Value(Place(RESULT, variable.name)))

    def _compute(self, op: Operator) -> None:
        """Write an operator, after the reshardings of its operands."""
        reads = []
        for position, tensor in op.operands:
            place = Place(OPERAND, op.name, position)
            if self._pass is self._once or not self._pass.backward.flow.accumulates(op, position):
                reads.append(self._operand(place, tensor, self.view.sharding(op, position)))
                continue
            reads.append(Value(place))
            if Value(place) not in self._made_once:
                # Resharded once for all micro-batches.
                current, self._pass = self._pass, self._once
                self._operand(place, tensor, self.view.sharding(op, position))
                self._pass = current
        self._pass.places.append(Place(OPERATOR, op.name))
        self._add(COMPUTE, FORWARD, Place(OPERATOR, op.name), tuple(reads), _results(op))
        for tensor in op.outputs:
            viewed = viewed_operand(op, tensor.name)
            if viewed is not None:
                position = next(i for i, operand in op.operands if operand.name == viewed.name)
                self._alias(Value(Place(RESULT, tensor.name)), Value(Place(OPERAND, op.name, position)))

    def _operand(self, place: Place, tensor: Tensor, sharding: OperandSharding) -> Value:
        """Write the resharding of a tensor to an operand, by way of its shared copy if it has one."""
        source, shared = Value(Place(RESULT, tensor.name)), self.view.strategy.shared.get(tensor.name)
        if shared is not None:
            copy = Place(SHARED, tensor.name)
            if tensor.name not in self._pass.shared:
                self._pass.shared.add(tensor.name)
                self._reshard(copy, source, self.view.shared_resharding(tensor, shared))
            source = Value(copy)
        self._reshard(place, source, self.view.resharding(tensor, sharding))
        return Value(place)

    def _reshard(self, place: Place, source: Value, resharding: Resharding) -> None:
        """Write the resharding to an operand or to a shared copy."""
        path = self.router.route(resharding).forward
        self._pass.places.append(place)
        if path.steps:
            stream = self._pass.backward.flow.stream(path)
            self._add(RESHARD, FORWARD, place, (source,), (Value(place),), stream)
        else:
            self._alias(Value(place), source)

    # The backward pass

    def _variables(self, taken: Gradients) -> set[str]:
        """Return the names of the variables' tensors with respect to which gradients are taken."""
        return {self.graph.operators[name].result.name for name in taken.variables if name not in self.graph.lookups}

    def _found(self, taken: Gradients) -> set[str]:
        """Return the names of what lookups find in variables that are updated by rows."""
        lookups = [name for variable in taken.variables for name in self.graph.lookups.get(variable, ())]
        return {self.graph.operators[name].result.name for name in lookups}

    def _back_from_loss(self, taken: Gradients, starts: set[str]) -> dict[Place, Value]:
        """Write the backward pass from a loss; return the gradients that nothing passes on."""
        place = Place(OPERAND, taken.name, LOSS)
        sharding = step_sharding(self.view.strategy.mesh, taken.loss, Consumer(taken.name, LOSS))
        self._operand(place, taken.loss, sharding)
        # The gradient of the loss is a constant.
        seed = Value(place, GRADIENT)
        self._add(FEED, BACKWARD, place, (Value(place),), (seed,))
        return self._back({place: seed}, starts, {taken.name: taken.loss})

    def _back(
        self, given: Mapping[Place, Value], starts: set[str], losses: Mapping[str, Tensor]
    ) -> dict[Place, Value]:
        """Write a backward pass; return the gradients that nothing passes on."""
        backward = self._pass.backward
        for task in backward.run(self._pass.places, starts, given, losses):
            self._append(task)
        for value, source in backward.aliases.items():
            self._alias(value, source)
        arrived = {place: self._own(value) for place, value in backward.arrived.items()}
        backward.arrived.clear()
        return arrived

    def _update(self, start: int, updates: _Updates) -> None:
        """Write the updates of variables, each as soon as its gradient has arrived and its old value has been read.

        Variables that are updated by rows come last.

        Args:
            start: the index of the task with which the first backward pass begins.
        """
        later: dict[int, list[Task]] = {}
        last, end = self._last_uses(start), len(self.tasks)
        for name, gradient in updates.dense:
            task = Task(UPDATE, BACKWARD, Place(OPERATOR, name), (gradient,), ())
            variable = Place(RESULT, self.graph.operators[name].result.name)
            uses = [last[use] for use in (variable, gradient) if use in last]
            later.setdefault(max(uses) + 1 if uses else end, []).append(task)
        for index in sorted(later, reverse=True):
            self.tasks[index:index] = later[index]
        for name, gradients in updates.rows:
            returned = []
            for gradient, place in gradients:
                returned.append(gradient._replace(place=place, version=RETURNED, n_summed=0))
                stream = self._stream_of_rows(place)
                self.tasks.append(Task(RESHARD, BACKWARD, place, (gradient,), (returned[-1],), stream=stream))
            self.tasks.append(Task(UPDATE, BACKWARD, Place(OPERATOR, name), tuple(returned), ()))

    def _stream_of_rows(self, place: Place) -> str:
        """Return the stream in which the gradient of what a lookup found is sent to every device."""
        op = self.graph.producers[place.name]
        _, resharding = row_reshardings(op, self.view.rules[op.name], self.view.strategy.configs[op.name])
        return self._once.backward.flow.stream(self.router.route(resharding).forward, is_overlappable=True)

    def _last_uses(self, start: int) -> dict[Value | Place, int]:
        """Return the index of the last task that writes each value, and of the last that reads from each place's memory."""
        last: dict[Value | Place, int] = {}
        for index in range(start, len(self.tasks)):
            task = self.tasks[index]
            last.update(dict.fromkeys(task.writes, index))
            last.update((self._source(value).place, index) for value in task.reads)
        return last

    def _source(self, value: Value) -> Value:
        """Return the value whose memory a value is."""
        while value in self.aliases:
            value = self.aliases[value]
        return value


@dataclass
class _Updates:
    """The updates of variables that are to be written.

    Attributes:
        dense: variables' names with their gradients.
        rows: names of variables that are updated by rows, with the gradients of what lookups found, and the lookups' places.
    """

    dense: list[tuple[str, Value]] = field(default_factory=list)
    rows: list[tuple[str, list[tuple[Value, Place]]]] = field(default_factory=list)

    def add(
        self, graph: Graph, taken: Gradients, arrived: Mapping[Place, Value], rows: Mapping[Place, Sequence[Value]]
    ) -> None:
        """Add the updates of a training step; ``rows`` has the gradients of lookups' results in all micro-batches."""
        for name in taken.variables:
            lookups = graph.lookups.get(name, ())
            places = [Place(RESULT, graph.operators[each].result.name) for each in lookups]
            place = Place(RESULT, graph.operators[name].result.name)
            if lookups:
                self.rows.append((name, [(value, each) for each in places for value in rows.get(each, ())]))
            elif place in arrived:
                self.dense.append((name, arrived[place]))


def _results(op: Operator) -> tuple[Value, ...]:
    """Return the values of an operator's results."""
    return tuple(Value(Place(RESULT, tensor.name)) for tensor in op.outputs)
