"""Emit one function of a model in stages: its passes in order, and what crosses from one stage to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial, reduce

import tensorflow as tf

from ...ir.graph import Tensor
from ...lowering.model import Arriving, LocalModel
from ...lowering.operators import Values
from ...lowering.pass_chain import PassChain
from ...lowering.resharding.reshard import Resharder
from ...optimizers.running_optimizer import PendingUpdate
from ...program.fetch import Fetch
from ...program.passes import FORWARD, PARAMETERS, Pass, merged
from ...reschedule.between_machines import cheapest_way
from ...reschedule.cross_mesh import CrossMesh
from ...reschedule.layout import Layout
from ...rules.rule import OperandSharding
from ...sharding.resharding import resharding_of
from ...sharding.stages import Crossing
from ...sharding.strategy import StrategyView
from ..functions import Feed
from ..micro_batched_step import Exchanged, MicroBatchedStep, as_produced
from .parts import Staged, StagePart
from .rows_ahead import RowsAhead
from .transfers import Message


class PipelineEmission:
    """The emission of one function."""

    def __init__(
        self,
        engine: Staged,
        fetch: Fetch,
        parts: Sequence[StagePart],
        fed: Mapping[int, Mapping[Feed, Values]],
        fed_whole: Mapping[int, Mapping[Feed, Values]],
        resharders: Mapping[int, Resharder],
    ) -> None:
        """Take a function's parts.

        Args:
            fed: by stage, what it is fed, in micro-batches where it runs in these.
            fed_whole: by stage, the batches that it is fed as one, for what it runs ahead.
        """
        self._engine, self._fetch, self._parts, self._fed, self._resharders = engine, fetch, parts, fed, resharders
        self._fed_whole = fed_whole
        self._transfers = engine.transfers()
        self._is_training = bool(fetch.train_steps)
        self._crossings = [each for each in engine.stages.crossings if self._is_used(each)]
        self._number = {each: number for number, each in enumerate(self._crossings)}
        self._variables = {stage: self._values_of_variables(stage) for stage in engine.engines}

    def _is_used(self, crossing: Crossing) -> bool:
        """Return whether an operator that the target runs reads a tensor that crosses."""
        part, graph = self._parts[crossing.target], self._engine.views[crossing.target].whole.graph
        return any(op.name in part.needed for op in graph.consumers.get(crossing.tensor, ()))

    def _view(self, stage: int) -> StrategyView:
        view = self._engine.views[stage]
        return view.per_micro_batch if self._is_training else view.whole

    def _in_micro_batches(self, crossing: Crossing) -> bool:
        micro_batches = self._engine.micro_batches[crossing.source]
        return self._is_training and bool(micro_batches) and micro_batches[0].makes(self._tensor(crossing))

    def _tensor(self, crossing: Crossing) -> Tensor:
        return self._view(crossing.source).graph.tensors[crossing.tensor]

    # Messages

    @property
    def _n_numbers(self) -> int:
        """The number of messages in which a tensor may cross: those of the micro-batches, and one for all."""
        return max(map(len, self._engine.micro_batches)) + 1

    def _message(self, crossing: Crossing, micro_batch: int, is_gradient: bool) -> Message:
        tensor = self._tensor(crossing)
        source, target = (
            (self._view(stage).layout(tensor_of), self._engine.views[stage].devices)
            for stage, tensor_of in (
                (crossing.source, tensor),
                (crossing.target, self._view(crossing.target).graph.tensors[crossing.tensor]),
            )
        )
        if crossing.is_ahead and self._is_training and not is_gradient:
            source = Layout.replicated(source[0].mesh, len(tensor.shape)), source[1]
        (first, from_devices), (last, to_devices) = (target, source) if is_gradient else (source, target)
        first = first.with_partial(()) if is_gradient else first
        way = cheapest_way(first, last.with_partial(()), tensor.shape, from_devices, to_devices, self._engine.machine_of)
        number = (self._number[crossing] * self._n_numbers + micro_batch + 1) * 2 + is_gradient
        return Message(crossing.tensor, number, way, tensor.dtype, is_gradient, micro_batch)

    def _send(self, crossing: Crossing, model: LocalModel, micro_batch: int = -1) -> None:
        """Emit the sending of a tensor, its sums completed."""
        message = self._message(crossing, micro_batch, False)
        sharding = OperandSharding(message.way.source, None)
        values = model.resharded(self._tensor(crossing), sharding, f"stage {crossing.target}")
        self._transfers.send(message, values, self._resharders[crossing.source])

    def _receive(self, crossing: Crossing, micro_batch: int = -1, after: Sequence[tf.Tensor] = ()) -> Values:
        """Emit the reception of a tensor, behind some values; return its own in the layout in which the stage is fed it."""
        view, resharder = self._view(crossing.target), self._resharders[crossing.target]
        message, tensor = self._message(crossing, micro_batch, False), view.graph.tensors[crossing.tensor]
        values, engine = self._transfers.receive(message, resharder, after), self._engine.engines[crossing.target]
        return as_produced(tensor, message.way.target, values, view, resharder, engine.path_finder)

    def _received(
        self, stage: int, crossings: Sequence[Crossing], micro_batch: int = -1
    ) -> tuple[dict[str, Values], Arriving | None]:
        """Emit the reception of what a stage needs before a pass; return it, and what the pass receives when it comes to it.

        The latter is only there if branches begin in the stage: these run first.
        """
        awaited = self._engine.stages.awaited if self._branches(stage) else ()
        arriving = [each for each in crossings if each in awaited]
        received = {each.tensor: self._receive(each, micro_batch) for each in crossings if each not in arriving}

        def receive(after: Values) -> dict[str, Values]:
            return {each.tensor: self._receive(each, micro_batch, after) for each in arriving}

        return received, Arriving(frozenset(each.tensor for each in arriving), receive) if arriving else None

    def _branches(self, stage: int) -> set[str]:
        """Return the names of the operators that a stage runs before it waits."""
        return self._parts[stage].needed & self._engine.stages.early[stage]

    def _send_back(self, crossing: Crossing, gradients: Values, micro_batch: int = -1) -> None:
        """Emit the sending of a tensor's gradient."""
        self._transfers.send(self._message(crossing, micro_batch, True), gradients, self._resharders[crossing.target])

    def _receive_back(self, crossings: Sequence[Crossing], micro_batch: int = -1) -> dict[str, Values]:
        """Emit the reception of gradients; return those of each tensor, summed over the stages that use it."""
        found: dict[str, list[Values]] = {}
        for crossing in crossings:
            found.setdefault(crossing.tensor, []).append(self._receive_gradient(crossing, micro_batch))
        return {name: [tf.add_n(list(each)) for each in zip(*parts, strict=True)] for name, parts in found.items()}

    def _receive_gradient(self, crossing: Crossing, micro_batch: int) -> Values:
        """Emit the reception of a tensor's gradient; return it in the layout in which the stage has the tensor."""
        stage, tensor, message = crossing.source, self._tensor(crossing), self._message(crossing, micro_batch, True)
        resharder, path_finder = self._resharders[stage], self._engine.engines[stage].path_finder
        values = self._transfers.receive(message, resharder)
        wanted = OperandSharding(self._view(stage).layout(tensor).with_partial(()), None)
        resharding = resharding_of(tensor, message.way.target, wanted)
        return resharder.reshard(resharding, path_finder.paths(resharding), values, tensor.name)

    def _from(self, stage: int, once: bool, trained: bool = False) -> list[Crossing]:
        """Return what a stage sends: of each micro-batch, or once a step; ``trained`` leaves out what has no gradient.

        What it sends ahead isn't among it.
        """
        return [
            each
            for each in self._crossings
            if each.source == stage
            and not each.is_ahead
            and self._in_micro_batches(each) != once
            and (each.has_gradient or not trained)
        ]

    def _to(self, stage: int, once: bool, trained: bool = False) -> list[Crossing]:
        """Return what a stage receives; see :meth:`_from`."""
        return [
            each
            for each in self._crossings
            if each.target == stage and self._in_micro_batches(each) != once and (each.has_gradient or not trained)
        ]

    # Functions

    def _values_of_variables(self, stage: int) -> dict[str, Values]:
        engine, part = self._engine.engines[stage], self._parts[stage]
        return {
            op.result.name: [variable.value() for variable in engine.variables[op.name]]
            for op in self._engine.views[stage].whole.graph.variables
            if op.name in part.needed | part.ahead
        }

    def _sources(self, stage: int) -> dict[str, Values]:
        """Return the values that a stage is given for the whole step: variables and feeds."""
        sources = dict(self._variables[stage])
        for feed, values in self._fed[stage].items():
            if not self._engine.of_feed(self._fetch, feed, stage):
                sources[feed.tensor.name] = values
        return sources

    def _ahead(self, stage: int) -> tuple[LocalModel, list[Crossing]] | None:
        """Emit the lookups that a stage runs ahead; return their model and what is sent, or None where there are none."""
        crossings = [each for each in self._crossings if each.source == stage and each.is_ahead]
        if not crossings:
            return None
        engine = self._engine.engines[stage]
        feeds = {**self._fed[stage], **self._fed_whole[stage]}
        sources = self._variables[stage] | {feed.tensor.name: values for feed, values in feeds.items()}
        view, resharder = self._engine.views[stage].whole, self._resharders[stage]
        model = LocalModel(view, engine.path_finder, resharder, sources, engine._update, is_training=self._is_training)
        model.emit(set(self._parts[stage].ahead))
        return model, crossings

    def forward(self) -> dict[int, list[Values]]:
        """Emit the stages one after the other, on the whole batch; return what each fetches."""
        results = {}
        for stage in sorted(self._engine.engines):
            ahead = self._ahead(stage)
            if ahead is not None:
                for crossing in ahead[1]:
                    self._send(crossing, ahead[0])
        for stage, engine in sorted(self._engine.engines.items()):
            part, (received, arriving) = self._parts[stage], self._received(stage, self._to(stage, once=True))
            sources = self._sources(stage) | received
            model = LocalModel(
                engine.view, engine.path_finder, self._resharders[stage], sources, engine._update, is_training=False
            )
            model.emit(part.needed, arriving)
            results[stage] = [model.fetched(*each) for each in part.fetch.tensors]
            for crossing in self._from(stage, once=True):
                self._send(crossing, model)
        return results

    def train(self) -> dict[int, list[Values]]:
        """Emit a training step; return what each stage fetches."""
        steps, ahead = {}, {}
        for stage in sorted(self._engine.engines):
            found = self._ahead(stage)
            if found is not None:
                views, micro_batches = self._engine.views[stage], self._engine.micro_batches[stage]
                ahead[stage] = RowsAhead(found[0], views.per_micro_batch, micro_batches, found[1])
                ahead[stage].send(self._send_rows)
        chains = self._chains()
        for stage, engine in sorted(self._engine.engines.items()):
            part, view, micro_batches = self._parts[stage], self._engine.views[stage], self._engine.micro_batches[stage]
            received = {each.tensor: self._receive(each) for each in self._to(stage, once=True)}
            sources, resharder = self._sources(stage) | received, self._resharders[stage]
            outside = LocalModel(
                view.per_micro_batch, engine.path_finder, resharder, sources, engine._update, is_training=True
            )
            exchanged = Exchanged(
                self._loss(stage),
                tuple(each.tensor for each in self._to(stage, once=False, trained=True)),
                tuple(dict.fromkeys(each.tensor for each in self._from(stage, once=False))),
                tuple(each.tensor for each in self._to(stage, once=True, trained=True)),
            )
            steps[stage] = MicroBatchedStep(
                part.fetch, self._fed[stage], part.needed, outside, micro_batches, view.whole,
                engine.begin_update, chains[view.devices], exchanged,
            )  # fmt: skip
            for crossing in self._from(stage, once=True):
                self._send(crossing, outside)
        self._deferring = {each.stage for order in self._engine.orders for each in order if each.work == PARAMETERS}
        for each in merged(self._engine.orders):
            if each.stage in steps:
                self._run(each, steps[each.stage])
        results, updates = {}, {}
        for stage, step in reversed(steps.items()):
            given = self._receive_back(self._from(stage, once=True, trained=True))
            if stage in ahead:
                given = summed(given, ahead[stage].table_gradients(self._receive_gradient))
            back = {each.tensor: each for each in self._to(stage, once=True, trained=True)}
            results[stage], updates[stage] = step.finish(given, partial(self._send_back_once, back))
        self._update(updates)
        return results

    def _chains(self) -> dict[tuple[int, ...], PassChain]:
        """Return by the devices of stages that are built here the passes that these run, of all of their stages."""
        found: dict[tuple[int, ...], PassChain] = {}
        for stage, engine in self._engine.engines.items():
            devices, n = self._engine.views[stage].devices, len(self._engine.micro_batches[stage])
            chain = found.setdefault(devices, PassChain(n, engine.lag if engine.in_order else None, 0))
            chain.n_stages += 1
        return found

    def _update(self, updates: Mapping[int, PendingUpdate]) -> None:
        """Emit the updates of the stages; what they need summed over all parameters is added up, in the stages' order."""
        stages = range(self._engine.stages.n)
        for source, update in updates.items():
            for target in stages if update.sums is not None else ():
                if target != source:
                    assert update.sums is not None
                    message = self._message_of_sums(source, target, update.sums[0].dtype.name)
                    self._transfers.send(message, update.sums, self._resharders[source])
        for target, update in updates.items():
            if update.sums is None:
                update.apply(None)
                continue
            resharder, dtype = self._resharders[target], update.sums[0].dtype.name
            of_stages = [
                update.sums
                if source == target
                else self._transfers.receive(self._message_of_sums(source, target, dtype), resharder)
                for source in stages
            ]
            update.apply([reduce(tf.add, each) for each in zip(*of_stages, strict=True)])

    def _message_of_sums(self, source: int, target: int, dtype: str) -> Message:
        """Return the message by which one stage tells another its part of the global norm."""
        ends = [
            (Layout.replicated(view.whole.strategy.mesh, 1), view.devices)
            for view in (self._engine.views[source], self._engine.views[target])
        ]
        way = CrossMesh(ends[0][0], ends[1][0], (1,), ends[0][1], ends[1][1])
        first = 2 * len(self._crossings) * self._n_numbers + 2
        number = first + source * self._engine.stages.n + target
        return Message(f"the global norm, of stage {source}", number, way, dtype, False, -1)

    def _send_back_once(self, crossings: Mapping[str, Crossing], name: str, gradients: Values) -> None:
        self._send_back(crossings[name], gradients)

    def _run(self, run: Pass, step: MicroBatchedStep) -> None:
        """Emit a pass of a micro-batch in a stage, with what it receives and sends."""
        stage, index = run.stage, run.micro_batch
        if run.work == FORWARD:
            model = step.forward(index, *self._received(stage, self._to(stage, once=False), index))
            for crossing in self._from(stage, once=False):
                self._send(crossing, model, index)
            return
        if run.work == PARAMETERS:
            step.parameters(index)
            return
        given, defers = self._receive_back(self._from(stage, once=False, trained=True), index), stage in self._deferring
        returned = step.backward(index, given, defers or bool(self._branches(stage)))
        for crossing in self._to(stage, once=False, trained=True):
            self._send_back(crossing, returned[crossing.tensor], index)
        if self._branches(stage) and not defers:
            step.parameters(index)

    def _send_rows(self, crossing: Crossing, micro_batch: int, values: Values) -> None:
        """Emit the sending of a micro-batch's rows that were looked up ahead."""
        self._transfers.send(self._message(crossing, micro_batch, False), values, self._resharders[crossing.source])

    def _loss(self, stage: int) -> Tensor | None:
        """Return the loss, in the stage that computes it."""
        (name,) = self._fetch.train_steps
        loss = self._engine.graph.train_steps[name].loss
        assert loss is not None
        return loss if self._engine.stages.home(loss) == stage else None


def summed(first: Mapping[str, Values], second: Mapping[str, Values]) -> dict[str, Values]:
    """Return values by name, those of names in both added."""
    both = {
        name: [tf.add_n(list(pair)) for pair in zip(values, second[name], strict=True)]
        for name, values in first.items()
        if name in second
    }
    return {**first, **second, **both}
