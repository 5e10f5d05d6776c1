"""Write a training step, or another function, under a strategy as tasks, in the order in which a rank runs them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ..ir.graph import GRADIENT, SOURCES, Gradients, Operator, Tensor, TrainStep
from ..ir.micro_batching import MicroBatch
from ..sharding.consumers import HYPERPARAMETER, LOSS
from ..sharding.resharding import PathFinder
from ..sharding.strategy import StrategyView
from .deferral import divided
from .fetch import Fetch, all_of, backward_passes_of, lies_as_it_would, operators_of, trained_rows, trained_tensors
from .forward import ForwardPass, results_of
from .gradient_flow import GradientFlow
from .stage_ends import NOTHING_CROSSES, StageEnds, add_gradients_ahead, fed_gradients, send, send_ahead, sent_back
from .tasks import (
    ACCUMULATED,
    BACKWARD,
    FEED,
    GLOBAL,
    JOIN,
    LOCAL,
    OPERAND,
    OPERATOR,
    RESULT,
    SUM,
    Site,
    Task,
    Value,
    source_of,
)
from .tasks import GRADIENT as GRADIENT_OF
from .updates import Updates


@dataclass(frozen=True)
class StepProgram:
    """One run of a function.

    Attributes:
        tasks: all tasks in order.
        aliases: values that are another value's memory, since nothing has to be done to make them of it.
        n_micro_batches: how many micro-batches were written out; the last but one stands for the last one of those
            between, which are alike.
        passes: the index of the task with which each pass begins, and that behind the last one. Each micro-batch, or the
            batch at once, has three: forward, backward, and what the backward pass defers.
        fetched: the values that the function returns.
        train_steps: the names of the training steps that the function runs.
        losses: those of training steps that a stage computes, by the steps' names; None where it doesn't.
    """

    tasks: tuple[Task, ...]
    aliases: Mapping[Value, Value]
    n_micro_batches: int = 1
    passes: tuple[int, ...] = ()
    fetched: tuple[Value, ...] = ()
    train_steps: tuple[str, ...] = ()
    losses: Mapping[str, Tensor | None] = field(default_factory=dict)

    def source(self, value: Value) -> Value:
        """Return the value whose memory a value is."""
        return source_of(value, self.aliases)

    def __str__(self) -> str:
        return "\n".join(map(str, self.tasks))


def step_program(
    view: StrategyView,
    path_finder: PathFinder,
    most_micro_batches: int | None = None,
    ends: StageEnds = NOTHING_CROSSES,
    fetch: Fetch | None = None,
    given: Collection[str] = (),
    uses_buckets: bool = True,
    needed: set[str] | None = None,
) -> StepProgram:
    """Return the program of a function under a strategy; operators without a config aren't run.

    Args:
        most_micro_batches: how many micro-batches are written out at most.
        ends: what a stage of a pipeline exchanges with others.
        fetch: what the function runs and returns; None for all training steps, or for the whole graph if it has none.
        given: the names of the tensors that are fed, beside those that placeholders stand for.
        uses_buckets: whether small gradients are summed together.
        needed: the names of the operators that are run, if they aren't just those of the function.
    """
    flow = GradientFlow(view, path_finder)
    return _Step(flow, fetch or all_of(view.graph), given, ends, uses_buckets, needed).written(most_micro_batches)


def whole_program(
    view: StrategyView,
    path_finder: PathFinder,
    ends: StageEnds = NOTHING_CROSSES,
    fetch: Fetch | None = None,
    given: Collection[str] = (),
    needed: set[str] | None = None,
) -> StepProgram:
    """Return the program in which every resharding is a task, even if nothing has to be done; see :func:`step_program`.

    So its tasks are those of every strategy that regathers and rematerializes the same.
    """
    flow = GradientFlow(view, path_finder, is_whole=True)
    return _Step(flow, fetch or all_of(view.graph), given, ends, False, needed).written(None)


class _Step:
    """The step that is being written."""

    def __init__(
        self,
        flow: GradientFlow,
        fetch: Fetch,
        given: Collection[str],
        ends: StageEnds,
        uses_buckets: bool,
        needed: set[str] | None,
    ) -> None:
        self.flow, self.view, self.graph, self.ends = flow, flow.view, flow.view.graph, ends
        self.fetch, self.given = fetch, given
        self.needed = operators_of(self.graph, fetch, given) if needed is None else needed
        self.takes = backward_passes_of(self.graph, fetch, self.needed)
        # The number of each backward pass is that in other stages.
        self._number = {name: number for number, name in enumerate(self.graph.pass_names)}
        self.tasks: list[Task] = []
        self.aliases: dict[Value, Value] = {}
        self._options = bool(self.takes or fetch.train_steps), uses_buckets
        self._pass = self._once = ForwardPass(flow, self.tasks, self.aliases, None, None, *self._options)
        # What is sent before all passes, computed of the whole batch.
        self._ahead = self._once
        # Of each backward pass that was written the gradients that nothing passed on, by the gradients' name.
        self._taken: dict[str, dict[Site, Value]] = {}
        self._trained: set[str] = set()
        # The index of the first task that needs gradients; in micro-batches, their sums.
        self._n_forward = 0
        # The index of the task with which the deferred part of the last backward pass begins; and that of all passes.
        self._deferred = 0
        self._last_urgent: Task | None = None
        self._passes: list[int] = []

    def written(self, most_micro_batches: int | None) -> StepProgram:
        """Write the step; see :func:`step_program`."""
        graph, micro_batching = self.graph, self.graph.micro_batching
        sent = [graph.tensors[name] for name in self.ends.ahead]
        names = graph.ancestors(sent, (), self.given)
        read = (*sent, *(tensor for name in names for _, tensor in graph.operators[name].operands))
        ahead = {graph.producers[tensor.name].name for tensor in read}
        in_passes = self.needed | {graph.producers[name].name for name in self.given}
        self.needed = self.needed | names
        all_names = in_passes | names
        operators = [
            op
            for op in graph.operators.values()
            if op.name in all_names and (op.updates or op.name) in self.view.interfaces
        ]
        if micro_batching is None:
            return self._written_at_once(operators, ahead)
        # Metrics and their updates run after all micro-batches, when the memory of these is free again.
        after = [op for op in operators if op.name in micro_batching.after]
        operators = [op for op in operators if op.name not in micro_batching.after]
        for op in operators:
            if op.updates is not None or op.type in SOURCES or graph.n_runs(op.result.name) == 1:
                self._write(op)
        self._write_ahead([op for op in operators if op.name in ahead and graph.n_runs(op.result.name) > 1])
        send(self.ends.sent, self._pass, n_runs=1)
        n = micro_batching.n if most_micro_batches is None else min(micro_batching.n, most_micro_batches)
        of_each = (op for op in operators if op.updates is None and graph.n_runs(op.result.name) > 1)
        fetched = self._run_micro_batches([op for op in of_each if op.name in in_passes], n, after)
        passes = tuple(self._passes)
        return StepProgram(tuple(self.tasks), self.aliases, n, passes, fetched, self.fetch.train_steps, self.ends.losses)

    def _write_ahead(self, operators: Sequence[Operator]) -> None:
        """Write operators that micro-batches compute once for the full batch, and the sending of what they look up."""
        flow = self.flow.ahead if operators else self.flow
        graph = flow.view.graph
        if not operators or graph.micro_batching is None:
            return
        batch = MicroBatch(graph.micro_batching, -1, 1)
        self._pass = self._ahead = ForwardPass(flow, self.tasks, self.aliases, self._once, batch, *self._options)
        for op in operators:
            self._write(graph.operators[op.name])
        send_ahead(self.ends, self._ahead)
        self._pass = self._once

    def _written_at_once(self, operators: Sequence[Operator], ahead: Collection[str]) -> StepProgram:
        """Write a function that takes its batch at once, the operators of these names before its passes.

        What it fetches is resharded as soon as it is there.
        """
        graph, late = self.graph, self.graph.late
        for op in operators:
            if op.name in ahead:
                self._write(op)
        send(self.ends.ahead, self._pass, n_runs=1)
        n_ahead, operators = len(self.tasks), [op for op in operators if op.name not in ahead]
        for op in operators:
            if op.name not in late:
                self._write(op)
        # Losses first: a fetched loss is then available already.
        for of_loss in self.takes:
            if graph.producers[of_loss.loss.name].name not in late:
                self._resharded_loss(of_loss)
        sites = self._fetched
        for site, tensor in sites:
            if graph.producers[tensor.name].name not in late:
                self._pass.operand(site, tensor)
        send(self.ends.sent, self._pass, n_runs=1)
        self._n_forward = len(self.tasks)
        for op in operators:
            if op.name in late:
                self._write(op)
        self._take(*self.takes)
        first_added = len(self.tasks)
        for gradients in self.takes:
            self._add_ahead(gradients, self._taken[gradients.name], trained_tensors(self.graph, gradients))
        additions = self.tasks[first_added:]
        self._train([graph.train_steps[name] for name in self.fetch.train_steps if name not in self._trained])
        fetched = tuple(self._pass.operand(*pair) for pair in sites)
        end = self._place(additions[0]) if additions else len(self.tasks)
        deferred = end if self._last_urgent is None else self._place(self._last_urgent) + 1
        passes, steps = (n_ahead, self._n_forward, deferred, end), self.fetch.train_steps
        return StepProgram(tuple(self.tasks), self.aliases, 1, passes, fetched, steps, self.ends.losses)

    def _place(self, task: Task) -> int:
        """Return the index of a task."""
        return next(index for index, other in enumerate(self.tasks) if other is task)

    @property
    def _fetched(self) -> list[tuple[Site, Tensor]]:
        """The tensors that the function returns, and where."""
        return [(Site(LOCAL if is_local else GLOBAL, tensor.name), tensor) for tensor, is_local in self.fetch.tensors]

    def _write(self, op: Operator) -> None:
        """Write an operator of the current pass, after the gradients and the updates that it waits for."""
        graph, results = self.graph, results_of(op)
        to_train = [name for name in op.controls if name in self.fetch.train_steps and name not in self._trained]
        self._train([graph.train_steps[name] for name in to_train])
        fed = tuple(value for value in results if value.site.name in self.given)
        if op.type in SOURCES:
            # Each micro-batch takes its part of a batch, or of a constant.
            is_taken = self._pass is self._once and graph.n_runs(op.result.name) > 1
            self._pass.add(FEED, Site(OPERATOR, op.name), (), () if is_taken else results)
            return
        if fed:
            self._pass.add(FEED, Site(OPERATOR, op.name), (), fed)
        if op.name not in self.needed or (results and fed == results):
            return
        if op.type == GRADIENT:
            arrived = self._take(graph.gradients[op.attrs["of"]])
            self._pass.alias(results[0], arrived[Site(RESULT, graph.operators[op.attrs["at"]].result.name)])
        elif op.updates is not None:
            self._pass.write(op)
        else:
            self._pass.compute(op, self.given)

    def _run_micro_batches(self, operators: Sequence[Operator], n: int, after: Sequence[Operator]) -> tuple[Value, ...]:
        """Write micro-batches, the accumulation of their gradients, the way back of the sums, and the operators after.

        Returns:
            The values that the function returns.
        """
        micro_batching = self.graph.micro_batching
        assert micro_batching is not None
        sums: dict[str, dict[Site, Value]] = {gradients.name: {} for gradients in self.takes}
        rows: dict[Site, list[Value]] = {}
        copies = {name for name in self.graph.tensors if self.graph.accumulates(name)}
        read_after = [(Site(GLOBAL, tensor.name), tensor) for op in after for _, tensor in op.operands]
        joined = {site: list[Value]() for site, t in [*self._fetched, *read_after] if self.graph.n_runs(t.name) > 1}
        for index in range(n):
            n_devices = 1 if self.ends.are_consecutive else self.view.strategy.mesh.n_devices
            micro_batch = MicroBatch(micro_batching, index, n_devices)
            self._pass = ForwardPass(self.flow, self.tasks, self.aliases, self._once, micro_batch, *self._options)
            self._passes.append(len(self.tasks))
            for op in operators:
                self._write(op)
            for gradients in self.takes:
                self._resharded_loss(gradients)
            for site, parts in joined.items():
                tensor = self.graph.tensors[site.name]
                is_local = site.kind == LOCAL and lies_as_it_would(self.view, tensor, micro_batch)
                parts.append(self._pass.own(self._pass.operand(Site(LOCAL if is_local else GLOBAL, site.name), tensor)))
            send(self.ends.sent, self._pass, micro_batching.n)
            n_forward = len(self.tasks)
            arrived = self._back_from(self.takes, copies)
            written = {value: at for at, task in enumerate(self.tasks[n_forward:], n_forward) for value in task.writes}
            ends = ((written[value], name, site, value) for name, of in arrived.items() for site, value in of.items())
            # Each is accumulated as soon as it is there. The later come first, so that indices of earlier ones stay.
            for at, name, site, value in sorted(ends, key=lambda end: -end[0]):
                if site.kind == RESULT:
                    rows.setdefault(site, []).append(value)
                    continue
                total = Value(site, ACCUMULATED, index + 1, backward_pass=self._number[name])
                reads = (*([sums[name][site]] if index else ()), value)
                self.tasks.insert(at + 1, Task(SUM, BACKWARD, site, reads, (total,)))
                self._deferred += at < self._deferred
                sums[name][site] = total
            self._passes += [n_forward, self._deferred]
        self._passes.append(len(self.tasks))
        self._pass = self._once
        for site, parts in joined.items():
            self._pass.add(JOIN, site, parts, (Value(site),))
        for op in after:
            self._write(op)
        fetched = tuple(self._pass.operand(*pair) for pair in self._fetched)
        self._n_forward = len(self.tasks)
        for gradients in self.takes:
            name, number, returned = gradients.name, self._number[gradients.name], self.ends.returned_of(gradients.name)
            self._add_ahead(gradients, sums[name], copies)
            seeds = sums[name] | fed_gradients(self.ends, self._pass, 1, name, number)
            self._taken[name] = self._pass.back(seeds, trained_tensors(self.graph, gradients) | returned, number)
            self.tasks += sent_back(self._pass, self._taken[name], returned, name)
        self._train([self.graph.train_steps[name] for name in self.fetch.train_steps], rows)
        return fetched

    # The backward pass

    def _take(self, *takes: Gradients) -> dict[Site, Value]:
        """Write the backward passes that take gradients, each once; return those of the last that nothing passes on."""
        new = [gradients for gradients in takes if gradients.name not in self._taken]
        self._taken |= self._back_from(new) if new else {}
        return self._taken[takes[-1].name] if takes else {}

    def _train(self, steps: Sequence[TrainStep], rows: Mapping[Site, Sequence[Value]] | None = None) -> None:
        """Write the updates of training steps, after the gradients that they need."""
        updates = Updates(self.flow, self.tasks, self.aliases)
        for step in steps:
            self._trained.add(step.name)
            arrived: dict[Site, Value] = {}
            if step.loss is not None:
                arrived = self._take(Gradients(step.name, step.loss, step.variables))
            sites = (Site(OPERAND, step.name, HYPERPARAMETER - i) for i in range(len(step.optimizer.tensors)))
            hyperparameters = [self._pass.operand(*pair) for pair in zip(sites, step.optimizer.tensors, strict=True)]
            values = {name: self._given(name, tensor) for name, tensor in zip(step.variables, step.gradients, strict=False)}
            all_rows = {site: [value] for site, value in arrived.items()} if rows is None else rows
            updates.add(step, arrived, all_rows, values, hyperparameters)
        if steps:
            updates.write(self._n_forward)

    def _given(self, variable: str, tensor: Tensor) -> Value:
        """Write the resharding of a tensor that a variable is updated by; return what it becomes."""
        if self.graph.producers[tensor.name].updates == variable:
            return Value(Site(RESULT, tensor.name))
        position = self.graph.given_gradients[variable].index(tensor)
        return self._pass.operand(Site(OPERAND, variable, position), tensor)

    def _resharded_loss(self, gradients: Gradients) -> Tensor | None:
        """Write the resharding of the loss that a backward pass begins with; return it, None in a stage without it."""
        loss = self.ends.losses.get(gradients.name, gradients.loss)
        if loss is not None:
            self.flow.losses[gradients.name] = loss
            self._pass.operand(Site(OPERAND, gradients.name, LOSS), loss)
        return loss

    def _back_from(self, takes: Sequence[Gradients], copies: Collection[str] = ()) -> dict[str, dict[Site, Value]]:
        """Write the backward passes from losses, or from gradients that other stages send.

        Args:
            copies: the tensors at which gradients of micro-batches are accumulated; without them variables have gradients.

        Returns:
            The gradients that nothing passes on, in this stage, by the name of the gradients that are taken.
        """
        received: dict[str, dict[Site, Value]] = {}
        for gradients in takes:
            self._resharded_loss(gradients)
            numbers = self.graph.n_micro_batches, gradients.name, self._number[gradients.name]
            received[gradients.name] = fed_gradients(self.ends, self._pass, *numbers)
        arrived: dict[str, dict[Site, Value]] = {}
        start, sent, sent_last = len(self.tasks), list[Task](), list[Task]()
        for gradients in takes:
            name, site, returned = gradients.name, Site(OPERAND, gradients.name, LOSS), self.ends.returned_of(gradients.name)
            # The gradient of the loss is a constant.
            seeds = {} if self.ends.losses.get(name, gradients.loss) is None else {site: Value(site, GRADIENT_OF)}
            for seed in seeds.values():
                self._pass.append(Task(FEED, BACKWARD, site, (Value(site),), (seed,)))
            starts = {*(copies or trained_tensors(self.graph, gradients)), *trained_rows(self.graph, gradients), *returned}
            arrived[name] = self._pass.back({**seeds, **received[name]}, starts, self._number[name])
            sent += sent_back(self._pass, arrived[name], returned - self.ends.late, name)
            sent_last += sent_back(self._pass, arrived[name], returned & self.ends.late, name)
        first, deferred = self.tasks[start:], list[Task]()
        if self.ends.divides:
            values = [value for task in sent for value in task.reads]
            first, deferred = divided(first, values, self.aliases, self.graph.operators)
        self.tasks[start:] = [*first, *sent, *deferred, *sent_last]
        self._deferred = start + len(first) + len(sent)
        self._last_urgent = sent[-1] if sent else self._last_urgent
        return arrived

    def _add_ahead(self, gradients: Gradients, arrived: dict[Site, Value], starts: Collection[str]) -> None:
        """Add to gradients that have arrived those by what the stage sent before its passes."""
        number = self._number[gradients.name]
        add_gradients_ahead(self.ends, self._ahead, arrived, starts, gradients.name, number, len(self._number) + number)
