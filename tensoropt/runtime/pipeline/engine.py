"""Run a model in stages: each process builds those of its stages, and all exchange what crosses from one to another.

Like :class:`..engine.Engine`, it builds one function for each set of fetches and feeds. A training function runs the passes
of the micro-batches in the order of the schedule; others run the stages one after the other, on the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
import tensorflow as tf

from ...common.errors import InputError
from ...ir.graph import PLACEHOLDER, Graph, Tensor
from ...ir.micro_batching import MicroBatch
from ...lowering.model import LocalModel
from ...lowering.operators import Values
from ...lowering.resharding.reshard import Backend, Collective, Resharder
from ...lowering.variables import StateEntry
from ...program.schedule import Orders, merged
from ...reschedule.cross_mesh import CrossMesh
from ...sharding.stages import Crossing, Stages
from ...sharding.strategy import StrategyView
from ..engine import Engine
from ..feed_shards import comes_in_micro_batches, cut, fed_shape
from ..functions import Feed, Fetch, names, operators_of, structure_digest
from ..micro_batched_step import Exchanged, MicroBatchedStep, as_produced
from ..process_limit import check_memory_left
from ..step_emission import StepEmission
from ..step_errors import only_step, refused_values
from .transfers import Message, Transfers

Share = Callable[[int, Sequence[np.ndarray] | None], Sequence[np.ndarray]]


@dataclass(frozen=True)
class StageView:
    """The strategy of a stage on its graph and on that of one micro-batch, and the numbers of its devices."""

    whole: StrategyView
    per_micro_batch: StrategyView
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Function:
    """A function for one set of fetches and feeds.

    Attributes:
        arguments: for each argument its feed, its stage and its rank there.
        results: for each fetched tensor the stage that returns it.
    """

    call: Callable[..., list[tf.Tensor]]
    log: tuple[Collective, ...]
    arguments: tuple[tuple[Feed, int, int], ...]
    results: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Part:
    """What one stage does in a function: what it fetches there, and the operators that it runs."""

    fetch: Fetch
    needed: set[str]


@dataclass
class StagedEngine:
    """The execution of a model in stages, on the stages and ranks that this process builds.

    Attributes:
        stages: the model, cut into stages.
        views: each stage's strategy.
        orders: the order of each stage's passes.
        engines: by number, the stages that this process builds, with their variables and optimizers.
        transfers: returns what carries messages between the stages of one function.
        share: gives all processes what the first rank of a stage fetched, given the stage's number.
    """

    stages: Stages
    views: tuple[StageView, ...]
    orders: Orders
    engines: Mapping[int, Engine]
    transfers: Callable[[], Transfers]
    share: Share = lambda stage, values: values or ()
    _functions: dict[tuple[Fetch, tuple[Feed, ...]], _Function] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        """The graph of the whole model."""
        return self.stages.whole.graph

    @property
    def backend(self) -> Backend:
        """Return the backend of one of the stages that this process builds."""
        return next(iter(self.engines.values())).backend

    @property
    def initial_value(self) -> Callable[[str], np.ndarray]:
        """Return the function that returns the global initial value of a variable, given by its operator's name."""
        return next(iter(self.engines.values())).initial_value

    @initial_value.setter
    def initial_value(self, value: Callable[[str], np.ndarray]) -> None:
        for engine in self.engines.values():
            engine.initial_value = value

    def initialize(self) -> None:
        """Reset all variables, the optimizers' too, to their initial values."""
        for engine in self.engines.values():
            engine.initialize()

    def state(self) -> tuple[StateEntry, ...]:
        """Return all variables of the stages that this process builds, in a fixed order."""
        return tuple(entry for _, engine in sorted(self.engines.items()) for entry in engine.state())

    @property
    def local_parameter_bytes(self) -> list[int]:
        """Return, for each rank that is built here, the bytes of its shards of the trainable variables."""
        return [n_bytes for _, engine in sorted(self.engines.items()) for n_bytes in engine.local_parameter_bytes]

    @property
    def collectives_per_step(self) -> int:
        """The number of collectives in the training function that was built last; 0 if none was built."""
        logs = [built.log for (fetch, _), built in self._functions.items() if fetch.train_steps]
        return len(logs[-1]) if logs else 0

    @cached_property
    def micro_batches(self) -> tuple[tuple[MicroBatch, ...], ...]:
        """The micro-batches of each stage; they take the same samples in all stages, however many devices these have."""
        graphs = (view.per_micro_batch.graph for view in self.views)
        found = [graph.micro_batching for graph in graphs if graph.micro_batching is not None]
        return tuple(tuple(MicroBatch(each, index, 1) for index in range(each.n)) for each in found)

    def run(self, fetch: Fetch, feeds: Mapping[Feed, np.ndarray | tf.Tensor]) -> list[list[np.ndarray]]:
        """Run the function for these fetches and feeds once.

        Returns:
            For each fetched tensor its global value.

        Raises:
            InputError: another thread runs a step, a placeholder isn't fed, an operator can't take a value, or a share of
                the batch is fed or fetched.
        """
        if any(is_local for _, is_local in fetch.tensors) or any(feed.is_local for feed in feeds):
            raise InputError(
                "a plan with stages is fed and fetched whole tensors; feed the full batch, without tensoropt.local"
            )
        with only_step():
            built = self.function(fetch, tuple(feeds))
            arguments = [self._argument(fetch, feed, np.asarray(feeds[feed]), *where) for feed, *where in built.arguments]
            with ExitStack() as stack:
                stack.enter_context(refused_values(self.graph))
                for engine in self.engines.values():
                    stack.enter_context(engine.backend.watched(built.log))
                values = iter([value.numpy() for value in built.call(*arguments)])
            check_memory_left()
        own = {stage: [next(values) for each in built.results if each == stage] for stage in sorted(self.engines)}
        found = {stage: iter(self.share(stage, own.get(stage))) for stage in sorted(set(built.results))}
        return [[next(found[stage])] for stage in built.results]

    def _argument(self, fetch: Fetch, feed: Feed, value: np.ndarray, stage: int, rank: int) -> tf.Tensor:
        layout = self.views[stage].whole.layout(feed.tensor)
        shard = cut(value, layout, feed.tensor.shape, rank, self.of_feed(fetch, feed, stage))
        return tf.constant(np.ascontiguousarray(shard).reshape(shard.shape))

    def of_feed(self, fetch: Fetch, feed: Feed, stage: int) -> tuple[MicroBatch, ...]:
        """Return the micro-batches into which a stage's feed is cut."""
        found = self.micro_batches[stage]
        return found if fetch.train_steps and comes_in_micro_batches(feed, found) else ()

    def function(self, fetch: Fetch, feeds: tuple[Feed, ...]) -> _Function:
        """Return the function for these fetches and feeds, which is built the first time.

        Raises:
            InputError: a placeholder that is needed isn't fed.
        """
        key = (fetch, feeds)
        if key not in self._functions:
            self._functions[key] = self._build(fetch, feeds)
        return self._functions[key]

    def _build(self, fetch: Fetch, feeds: tuple[Feed, ...]) -> _Function:
        parts = self._parts(fetch, {feed.tensor.name for feed in feeds})
        arguments = tuple(
            (feed, stage, rank)
            for feed in feeds
            for stage, engine in sorted(self.engines.items())
            if feed.tensor.name in self.views[stage].whole.graph.tensors
            for rank in engine.backend.ranks
        )
        resharders = {stage: Resharder(engine.backend) for stage, engine in sorted(self.engines.items())}

        def body(*given: tf.Tensor) -> list[tf.Tensor]:
            fed: dict[int, dict[Feed, Values]] = {stage: {} for stage in self.engines}
            for (feed, stage, _), value in zip(arguments, given, strict=True):
                fed[stage].setdefault(feed, []).append(value)
            with ExitStack() as stack:
                for resharder in resharders.values():
                    stack.enter_context(resharder.building())
                emission = _Emission(self, fetch, parts, fed, resharders)
                results = emission.train() if fetch.train_steps else emission.forward()
                return [tf.identity(values[0]) for _, of_stage in sorted(results.items()) for values in of_stage]

        signature = [
            tf.TensorSpec(
                fed_shape(self.views[stage].whole.layout(feed.tensor), feed.tensor.shape, self.of_feed(fetch, feed, stage)),
                feed.tensor.dtype,
            )
            for feed, stage, _ in arguments
        ]
        function = tf.function(body, input_signature=signature, autograph=False).get_concrete_function()
        for stage, resharder in resharders.items():
            self.engines[stage].agree(structure_digest(function.graph, resharder.log), resharder.log)
        log = tuple(entry for resharder in resharders.values() for entry in resharder.log)
        return _Function(function, log, arguments, tuple(self._stage_of(tensor) for tensor, _ in fetch.tensors))

    def _stage_of(self, tensor: Tensor) -> int:
        """Return the stage that a tensor is fetched from."""
        return self.stages.home(tensor)

    def _parts(self, fetch: Fetch, fed: set[str]) -> list[_Part]:
        """Return what each stage does in a function.

        Raises:
            InputError: a placeholder that is needed isn't fed.
        """
        asked: set[tuple[str, int]] = set()
        parts: list[_Part] = []
        for stage in reversed(range(self.stages.n)):
            graph = self.views[stage].whole.graph
            tensors = tuple(each for each in fetch.tensors if self._stage_of(each[0]) == stage)
            operators = tuple(name for name in fetch.operators if name in graph.operators)
            own = Fetch(tensors, fetch.train_steps, operators)
            crossing = [graph.tensors[each.tensor] for each in self._sent(stage) if (each.tensor, each.target) in asked]
            received = {each.tensor for each in self._received(stage)}
            needed = operators_of(graph, own, fed) | graph.ancestors(crossing, (), fed)
            needed = {name for name in needed if name in self.graph.operators or graph.operators[name].type == PLACEHOLDER}
            for name in list(needed):
                op = graph.operators[name]
                if op.type == PLACEHOLDER and op.result.name in received:
                    asked.add((op.result.name, stage))
                    needed.discard(name)
                elif op.type == PLACEHOLDER:
                    raise InputError(
                        f"placeholder '{op.name}' ({op.source}) isn't fed, but {names(fetch)} needs it; feed it"
                    )
            parts.insert(0, _Part(own, needed))
        return parts

    def _sent(self, stage: int) -> Iterator[Crossing]:
        return (each for each in self.stages.crossings if each.source == stage)

    def _received(self, stage: int) -> Iterator[Crossing]:
        return (each for each in self.stages.crossings if each.target == stage)


class _Emission:
    """The emission of one function."""

    def __init__(
        self,
        engine: StagedEngine,
        fetch: Fetch,
        parts: Sequence[_Part],
        fed: Mapping[int, Mapping[Feed, Values]],
        resharders: Mapping[int, Resharder],
    ) -> None:
        self._engine, self._fetch, self._parts, self._fed, self._resharders = engine, fetch, parts, fed, resharders
        self._transfers = engine.transfers()
        self._is_training = bool(fetch.train_steps)
        self._crossings = [each for each in engine.stages.crossings if self._is_used(each)]
        self._number = {each: number for number, each in enumerate(self._crossings)}
        self._models: dict[int, LocalModel] = {}

    def _is_used(self, crossing: Crossing) -> bool:
        """Return whether an operator that the target runs reads a tensor that crosses."""
        part, graph = self._parts[crossing.target], self._engine.views[crossing.target].whole.graph
        return any(op.name in part.needed for op in graph.consumers.get(crossing.tensor, ()))

    def _view(self, stage: int) -> StrategyView:
        view = self._engine.views[stage]
        return view.per_micro_batch if self._is_training else view.whole

    def _in_micro_batches(self, crossing: Crossing) -> bool:
        return self._is_training and self._engine.micro_batches[crossing.source][0].makes(self._tensor(crossing))

    def _tensor(self, crossing: Crossing) -> Tensor:
        return self._view(crossing.source).graph.tensors[crossing.tensor]

    # Messages

    def _message(self, crossing: Crossing, micro_batch: int, is_gradient: bool) -> Message:
        tensor = self._tensor(crossing)
        source, target = (
            (self._view(stage).layout(tensor_of).with_partial(()), self._engine.views[stage].devices)
            for stage, tensor_of in (
                (crossing.source, tensor),
                (crossing.target, self._view(crossing.target).graph.tensors[crossing.tensor]),
            )
        )
        ends = (target, source) if is_gradient else (source, target)
        way = CrossMesh(ends[0][0], ends[1][0], tensor.shape, ends[0][1], ends[1][1])
        n = len(self._engine.micro_batches[0]) + 1
        number = (self._number[crossing] * n + micro_batch + 1) * 2 + is_gradient
        return Message(crossing.tensor, number, way, tensor.dtype, is_gradient, micro_batch)

    def _send(self, crossing: Crossing, model: LocalModel, micro_batch: int = -1) -> None:
        """Emit the sending of a tensor."""
        values = model.without_sums(self._tensor(crossing), f"stage {crossing.target}")
        self._transfers.send(self._message(crossing, micro_batch, False), values, self._resharders[crossing.source])

    def _receive(self, crossing: Crossing, micro_batch: int = -1) -> Values:
        """Emit the reception of a tensor; return its values in the layout in which the stage is fed it."""
        view, resharder = self._view(crossing.target), self._resharders[crossing.target]
        values = self._transfers.receive(self._message(crossing, micro_batch, False), resharder)
        tensor = view.graph.tensors[crossing.tensor]
        layout = view.layout(tensor).with_partial(())
        return as_produced(tensor, layout, values, view, resharder, self._engine.engines[crossing.target].router)

    def _send_back(self, crossing: Crossing, gradients: Values, micro_batch: int = -1) -> None:
        """Emit the sending of a tensor's gradient."""
        self._transfers.send(self._message(crossing, micro_batch, True), gradients, self._resharders[crossing.target])

    def _receive_back(self, crossings: Sequence[Crossing], micro_batch: int = -1) -> dict[str, Values]:
        """Emit the reception of gradients; return those of each tensor, summed over the stages that use it."""
        found: dict[str, list[Values]] = {}
        for crossing in crossings:
            message = self._message(crossing, micro_batch, True)
            found.setdefault(crossing.tensor, []).append(
                self._transfers.receive(message, self._resharders[crossing.source])
            )
        return {name: [tf.add_n(list(each)) for each in zip(*parts, strict=True)] for name, parts in found.items()}

    def _from(self, stage: int, once: bool, trained: bool = False) -> list[Crossing]:
        """Return what a stage sends: of each micro-batch, or once a step; ``trained`` leaves out what has no gradient."""
        return [
            each
            for each in self._crossings
            if each.source == stage and self._in_micro_batches(each) != once and (each.has_gradient or not trained)
        ]

    def _to(self, stage: int, once: bool, trained: bool = False) -> list[Crossing]:
        """Return what a stage receives; see :meth:`_from`."""
        return [
            each
            for each in self._crossings
            if each.target == stage and self._in_micro_batches(each) != once and (each.has_gradient or not trained)
        ]

    # Functions

    def _sources(self, stage: int) -> dict[str, Values]:
        """Return the values that a stage is given for the whole step: variables, feeds, and what it receives once."""
        engine, view = self._engine.engines[stage], self._engine.views[stage].whole
        sources = {
            op.result.name: [variable.value() for variable in engine.variables[op.name]]
            for op in view.graph.variables
            if op.name in self._parts[stage].needed
        }
        for feed, values in self._fed[stage].items():
            if not self._engine.of_feed(self._fetch, feed, stage):
                layout = view.layout(feed.tensor)
                sources[feed.tensor.name] = as_produced(
                    feed.tensor, layout, values, view, self._resharders[stage], engine.router
                )
        for crossing in self._to(stage, once=True):
            sources[crossing.tensor] = self._receive(crossing)
        return sources

    def forward(self) -> dict[int, list[Values]]:
        """Emit the stages one after the other, on the whole batch; return what each fetches."""
        results = {}
        for stage, engine in sorted(self._engine.engines.items()):
            part, sources = self._parts[stage], self._sources(stage)
            steps = StepEmission(
                engine.graph, part.fetch, part.needed, engine._update, engine._train, engine._lookups
            )
            model = LocalModel(
                engine.view, engine.router, self._resharders[stage], sources, steps.update, training=False
            )
            results[stage] = steps.run(model)
            for crossing in self._from(stage, once=True):
                self._send(crossing, model)
        return results

    def train(self) -> dict[int, list[Values]]:
        """Emit a training step; return what each stage fetches."""
        steps = {}
        for stage, engine in sorted(self._engine.engines.items()):
            part, view, micro_batches = self._parts[stage], self._engine.views[stage], self._engine.micro_batches[stage]
            sources, resharder = self._sources(stage), self._resharders[stage]
            outside = LocalModel(view.per_micro_batch, engine.router, resharder, sources, engine._update, training=True)
            exchanged = Exchanged(
                tuple(each.tensor for each in self._to(stage, once=False, trained=True)),
                tuple(dict.fromkeys(each.tensor for each in self._from(stage, once=False))),
                tuple(each.tensor for each in self._to(stage, once=True, trained=True)),
                self._has_loss(stage),
            )
            steps[stage] = MicroBatchedStep(
                part.fetch, self._fed[stage], part.needed, outside, micro_batches, view.whole, engine._lookup, engine._train,
                engine.lag if engine.in_order else None, exchanged,
            )  # fmt: skip
            for crossing in self._from(stage, once=True):
                self._send(crossing, outside)
        for each in merged(self._engine.orders):
            if each.stage in steps:
                self._run(each.stage, each.micro_batch, each.is_backward, steps[each.stage])
        results = {}
        for stage, step in reversed(steps.items()):
            given = self._receive_back(self._from(stage, once=True, trained=True))
            back = {each.tensor: each for each in self._to(stage, once=True, trained=True)}
            results[stage] = step.finish(given, partial(self._send_back_once, back))
        return results

    def _send_back_once(self, crossings: Mapping[str, Crossing], name: str, gradients: Values) -> None:
        self._send_back(crossings[name], gradients)

    def _run(self, stage: int, index: int, is_backward: bool, step: MicroBatchedStep) -> None:
        """Emit a pass of a micro-batch in a stage, with what it receives and sends."""
        if not is_backward:
            received = {each.tensor: self._receive(each, index) for each in self._to(stage, once=False)}
            model = step.forward(index, received)
            for crossing in self._from(stage, once=False):
                self._send(crossing, model, index)
            return
        given = self._receive_back(self._from(stage, once=False, trained=True), index)
        returned = step.backward(index, given)
        for crossing in self._to(stage, once=False, trained=True):
            self._send_back(crossing, returned[crossing.tensor], index)

    def _has_loss(self, stage: int) -> bool:
        (name,) = self._fetch.train_steps
        loss = self._engine.graph.train_steps[name].loss
        assert loss is not None
        return self._engine.stages.home(loss) == stage
