"""Emit one function of a model: the passes of its stages in order, and what crosses from one stage to another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial, reduce

import tensorflow as tf

from ...lowering.operators import Values
from ...lowering.pass_chain import PassChain
from ...lowering.resharding.reshard import Resharder
from ...optimizers.running_optimizer import PendingUpdate
from ...program.fetch import Fetch
from ...program.orders.passes import BACKWARD, FORWARD, PARAMETERS, Pass, merged
from ...program.stage_ends import ends_of
from ...program.step import step_program
from ...reschedule.between_machines import cheapest_way
from ...reschedule.cross_mesh import CrossMesh
from ...reschedule.layout import Layout
from ...sharding.stages import Crossing
from ...sharding.strategy import StrategyView
from .feed_shards import fed_to_all, fed_values, resharded
from .functions import Feed
from .parts import RunningStages, StagePart
from .step_emission import Exchange, StepEmission
from .transfers import Message


class FunctionEmission:
    """The emission of one function."""

    def __init__(
        self,
        engine: RunningStages,
        fetch: Fetch,
        parts: Sequence[StagePart],
        feeds: Mapping[tuple[int, bool], Mapping[Feed, Values]],
        resharders: Mapping[int, Resharder],
    ) -> None:
        """Take a function's parts.

        Args:
            feeds: by stage, what it is fed, in micro-batches where it runs in these (False); and batches as one, for what it
                runs ahead (True).
        """
        self._engine, self._fetch, self._parts, self._fed, self._resharders = engine, fetch, parts, feeds, resharders
        self._transfers = engine.transfers()
        self._is_training = bool(fetch.train_steps)
        self._crossings = [crossing for crossing in engine.stages.crossings if self._is_used(crossing)]
        self._number = {crossing: number for number, crossing in enumerate(self._crossings)}
        self._deferring_stages = {run.stage for run in self._passes if run.work == PARAMETERS}
        # The kinds of messages: a tensor, and its gradient of each training step.
        self._kinds = ("", *fetch.train_steps)
        self._pending: dict[tuple[str, int], PendingUpdate] = {}
        self._steps: dict[int, StepEmission] = {}

    def _is_used(self, crossing: Crossing) -> bool:
        """Return whether an operator that the target runs reads a tensor that crosses."""
        part, graph = self._parts[crossing.target], self._engine.views[crossing.target].whole.graph
        return any(op.name in part.needed for op in graph.consumers.get(crossing.tensor, ()))

    def _view(self, stage: int) -> StrategyView:
        view = self._engine.views[stage]
        return view.per_micro_batch if self._is_training else view.whole

    # Messages

    @property
    def _n_numbers(self) -> int:
        """The number of messages in which a tensor may cross: those of the micro-batches, and one for all."""
        return max(map(len, self._engine.micro_batches)) + 1

    def _layout(self, crossing: Crossing, stage: int) -> Layout:
        """Return the layout in which a stage has a tensor: of rows that micro-batches are sent ahead, all on each rank."""
        view = self._view(stage)
        layout = view.layout(view.graph.tensors[crossing.tensor])
        is_cut = crossing.is_ahead and stage == crossing.source and view.graph.micro_batching is not None
        return Layout.replicated(layout.mesh, len(layout.splits)) if is_cut else layout

    def _message(self, crossing: Crossing, micro_batch: int, step: str) -> Message:
        """Return the message of a tensor, or of its gradient in a training step."""
        is_gradient, stages = bool(step), (crossing.source, crossing.target)
        tensor = self._view(crossing.source).graph.tensors[crossing.tensor]
        source, target = ((self._layout(crossing, stage), self._engine.views[stage].devices) for stage in stages)
        (first, from_devices), (last, to_devices) = (target, source) if is_gradient else (source, target)
        first = first.with_partial(()) if is_gradient else first
        way = cheapest_way(first, last.with_partial(()), tensor.shape, from_devices, to_devices, self._engine.machine_of)
        kind, n_kinds = self._kinds.index(step), len(self._kinds)
        number = (self._number[crossing] * self._n_numbers + micro_batch + 1) * n_kinds + kind
        return Message(crossing.tensor, number, way, tensor.dtype, is_gradient, micro_batch)

    def _send(self, crossing: Crossing, values: Values, micro_batch: int = -1, step: str = "") -> Values:
        """Emit the sending of a tensor, or of its gradient in a step, which is in the layout of its message.

        Returns:
            Values that are there when it is sent.
        """
        stage = crossing.target if step else crossing.source
        return self._transfers.send(self._message(crossing, micro_batch, step), values, self._resharders[stage])

    def _receive(
        self, crossing: Crossing, micro_batch: int = -1, step: str = "", after: Sequence[tf.Tensor] = ()
    ) -> Values:
        """Emit the reception of a tensor, or of its gradient, behind some values; return it as the stage has the tensor."""
        stage = crossing.source if step else crossing.target
        view, resharder, path_finder = self._view(stage), self._resharders[stage], self._engine.states[stage].path_finder
        message, tensor = self._message(crossing, micro_batch, step), view.graph.tensors[crossing.tensor]
        values, layout = self._transfers.receive(message, resharder, after), self._layout(crossing, stage)
        target = layout.with_partial(()) if step else layout
        return resharded(tensor, message.way.target, target, values, resharder, path_finder)

    def _received(self, crossing: Crossing, micro_batch: int) -> Values:
        """Emit the reception of a tensor by a pass; branches that begin in the stage run first."""
        stage = crossing.target
        waits = crossing in self._engine.stages.awaited and self._branches(stage)
        return self._receive(crossing, micro_batch, after=self._steps[stage].unread(micro_batch) if waits else ())

    def _branches(self, stage: int) -> set[str]:
        """Return the names of the operators that a stage runs before it waits."""
        return self._parts[stage].needed & self._engine.stages.early[stage]

    def _send_from(self, stage: int, name: str, values: Values, micro_batch: int, step: str) -> Values:
        """Emit the sending of a tensor to all stages that use it, or of its gradient to the one that computes it."""
        crossings = (each for each in self._crossings if each.tensor == name)
        own = (each for each in crossings if stage == (each.target if step else each.source))
        return [sent for crossing in own for sent in self._send(crossing, values, micro_batch, step)]

    def _gradient(self, stage: int, name: str, micro_batch: int, step: str) -> Values:
        """Emit the reception of a tensor's gradients from all stages that use it."""
        crossings = (each for each in self._from(stage) if each.tensor == name and step in each.steps)
        terms = [self._receive(crossing, micro_batch, step) for crossing in crossings]
        assert terms, f"no stage sends stage {stage} the gradient of {name} in step '{step}'"
        return [tf.add_n(list(parts)) for parts in zip(*terms, strict=True)] if len(terms) > 1 else terms[0]

    def _from(self, stage: int) -> list[Crossing]:
        """Return what a stage sends."""
        return [crossing for crossing in self._crossings if crossing.source == stage]

    def _to(self, stage: int) -> list[Crossing]:
        """Return what a stage receives."""
        return [crossing for crossing in self._crossings if crossing.target == stage]

    # Functions

    @cached_property
    def _passes(self) -> list[Pass]:
        """The passes of all stages in order; of a function that doesn't train, one stage's after the other's."""
        if self._is_training:
            return merged(self._engine.orders)
        return [Pass(stage, 0, work) for stage in range(self._engine.stages.n) for work in (FORWARD, BACKWARD)]

    def _variables(self, stage: int) -> dict[str, Callable[[int], Values]]:
        """Return functions that emit the values of the variables that a stage needs, by tensor name."""
        state, part = self._engine.states[stage], self._parts[stage]

        def read(name: str, micro_batch: int) -> Values:
            return state.read(name)

        return {
            op.result.name: partial(read, op.name)
            for op in self._engine.views[stage].whole.graph.variables
            if op.name in part.needed or op.name in part.ahead
        }

    def _fed_values(self, stage: int) -> dict[str, Callable[[int], Values]]:
        """Return functions that emit what a stage is given, by tensor name: what it is fed, and what others send."""
        views, state = self._engine.views[stage], self._engine.states[stage]
        stage_args = views, self._engine.micro_batches_of(self._fetch, stage), self._resharders[stage], state.path_finder
        feeds = self._fed.get((stage, False), {})
        sources = {feed.tensor.name: fed_values(feed, values, *stage_args) for feed, values in feeds.items()}
        for feed, values in self._fed.get((stage, True), {}).items():
            sources[feed.tensor.name] = partial(fed_to_all, values, sources[feed.tensor.name])
        return sources | {crossing.tensor: partial(self._received, crossing) for crossing in self._to(stage)}

    def _step(self, stage: int, chain: PassChain) -> StepEmission:
        state, part, view, stages = self._engine.states[stage], self._parts[stage], self._view(stage), self._engine.stages
        sources = self._fed_values(stage)
        divides = stage in self._deferring_stages or (self._is_training and bool(self._branches(stage)))
        steps = self._fetch.train_steps
        ends = ends_of(stages, stage, view.graph, self._from(stage), self._to(stage), steps, divides)
        resharder = self._resharders[stage]
        program = step_program(
            view, state.path_finder, ends=ends, fetch=part.fetch, given=sources.keys(), uses_buckets=resharder.joins,
            needed=part.needed,
        )  # fmt: skip
        exchange = Exchange(
            partial(self._send_from, stage), partial(self._gradient, stage), partial(self._updated, stage)
        )
        return StepEmission(
            program, view, resharder, {**self._variables(stage), **sources}, state, chain, exchange,
            self._engine.micro_batches_of(self._fetch, stage),
        )  # fmt: skip

    def run(self) -> dict[int, list[Values]]:
        """Emit the function; return what each stage fetches."""
        chains = self._chains()
        for stage in sorted(self._engine.states):
            self._steps[stage] = self._step(stage, chains[stage])
            self._steps[stage].begin()
        for run in self._passes:
            if run.stage in self._steps:
                self._run(run, self._steps[run.stage])
        results = {stage: step.finish() for stage, step in reversed(self._steps.items())}
        self._add_up()
        for step in self._steps.values():
            step.end()
        return results

    def _run(self, run: Pass, step: StepEmission) -> None:
        """Emit a pass of a micro-batch in a stage."""
        if run.work == FORWARD:
            step.forward(run.micro_batch)
        elif run.work == PARAMETERS:
            step.parameters(run.micro_batch)
        else:
            step.backward(run.micro_batch, is_deferring=run.stage in self._deferring_stages)

    def _chains(self) -> dict[int, PassChain]:
        """Return by stage the passes that its ranks run, of all of their stages; those of a batch at once wait for data."""
        states = self._engine.states
        lags = {
            each: state.lag if state.in_order and not state.graph.is_sequential else None for each, state in states.items()
        }
        if not self._is_training or not any(self._engine.micro_batches):
            # Passes of several stages on one rank would each be put in order with those of the others among them.
            return {stage: PassChain(1, lags[stage] if len(states) == 1 else None) for stage in states}
        chains: dict[tuple[int, ...], PassChain] = {}
        for stage in states:
            devices, n = self._engine.views[stage].devices, len(self._engine.micro_batches[stage])
            chains.setdefault(devices, PassChain(n, lags[stage], 0)).n_stages += 1
        return {stage: chains[self._engine.views[stage].devices] for stage in states}

    def _updated(self, stage: int, step: str, update: PendingUpdate) -> None:
        """Emit a step's update of a stage, at once unless it waits for sums over the parameters of other stages, too."""
        if update.sums is None or self._engine.stages.n == 1:
            update.apply(update.sums)
        else:
            self._pending[step, stage] = update

    def _add_up(self) -> None:
        """Emit the updates that need sums over the parameters of all stages, which are added up in the stages' order.

        They are added up in the widest type of these parameters.
        """
        graph, stages, updates = self._engine.graph, range(self._engine.stages.n), []
        for (step, stage), update in self._pending.items():
            types = {graph.operators[name].result.dtype for name in graph.train_steps[step].variables}
            widest = tf.float64 if "float64" in types else tf.float32
            updates.append((step, stage, update, [tf.cast(part, widest) for part in update.sums or ()]))
        for step, source, _, sums in updates:
            for target in stages:
                if target != source:
                    message = self._message_of_sums(step, source, target, sums[0])
                    self._transfers.send(message, sums, self._resharders[source])
        for step, target, update, sums in updates:
            resharder = self._resharders[target]
            stage_sums = [
                sums
                if source == target
                else self._transfers.receive(self._message_of_sums(step, source, target, sums[0]), resharder)
                for source in stages
            ]
            totals = [reduce(tf.add, parts) for parts in zip(*stage_sums, strict=True)]
            update.apply([tf.cast(total, own.dtype) for total, own in zip(totals, update.sums or (), strict=True)])

    def _message_of_sums(self, step: str, source: int, target: int, sums: tf.Tensor) -> Message:
        """Return the message by which a stage tells another its part of a step's sums over the parameters of all stages."""
        ends = [
            (Layout.replicated(view.whole.strategy.mesh, 1), view.devices)
            for view in (self._engine.views[source], self._engine.views[target])
        ]
        way = CrossMesh(ends[0][0], ends[1][0], tuple(sums.shape), ends[0][1], ends[1][1])
        n_kinds, n = len(self._kinds), self._engine.stages.n
        first = n_kinds * len(self._crossings) * self._n_numbers
        number = first + (self._kinds.index(step) * n + source) * n + target
        return Message(f"the sums of stage {source}'s gradients", number, way, sums.dtype.name, False, -1)
