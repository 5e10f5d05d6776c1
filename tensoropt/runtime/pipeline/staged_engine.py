"""Run a model in stages: each process builds those of its stages, and all exchange what crosses from one to another.

Like :class:`..engine.Engine`, it builds one function for each set of fetches and feeds. A training function runs the passes
of the micro-batches in the order of the schedule; others run the stages one after the other, on the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from ...common.errors import InputError
from ...ir.graph import PLACEHOLDER, Graph
from ...ir.micro_batching import MicroBatch
from ...lowering.operators import Values
from ...lowering.resharding.reshard import Backend, Collective, Resharder
from ...lowering.variables import StateEntry
from ...optimizers.running_optimizer import RunningOptimizer
from ...program.fetch import Fetch, operators_of
from ...program.passes import Orders
from ...sharding.stages import Crossing, Stages
from ..engine import Engine
from ..feed_shards import comes_in_micro_batches, fed_shape, rank_shard
from ..functions import Feed, names, structure_digest
from ..process_limit import check_memory_left
from ..step_errors import RefusedValues, only_step
from .emission import PipelineEmission
from .parts import StagePart, StageView
from .staged_optimizer import StagedOptimizer
from .staged_state import StageState, state_of_all
from .transfers import Transfers

Share = Callable[[int, Sequence[np.ndarray] | None], Sequence[np.ndarray]]
Fed = Mapping[Feed, np.ndarray | tf.Tensor]


def _own(stage: int, state: StageState | None) -> StageState:
    """Return the description of a stage's state, where this process builds all stages."""
    assert state is not None
    return state


class _Argument(NamedTuple):
    """An argument of a function: what a rank of a stage is fed.

    Attributes:
        is_whole: whether it is the batch as one, for what the stage runs ahead of all micro-batches.
    """

    feed: Feed
    stage: int
    rank: int
    is_whole: bool


@dataclass(frozen=True, slots=True)
class _Function:
    """A function for one set of fetches and feeds.

    Attributes:
        results: for each fetched tensor the stage that returns it.
    """

    call: Callable[..., list[tf.Tensor]]
    log: tuple[Collective, ...]
    arguments: tuple[_Argument, ...]
    results: tuple[int, ...]


@dataclass
class StagedEngine:
    """The execution of a model in stages, on the stages and ranks that this process builds.

    Attributes:
        stages: the model, cut into stages.
        views: each stage's strategy.
        orders: the order of the passes of each stage, or of each submesh that several share.
        engines: by number, the stages that this process builds, with their variables and optimizers.
        transfers: returns what carries messages between the stages of one function.
        share: gives all processes what the first rank of a stage fetched, given the stage's number.
        describe: gives all processes the description of a stage's state, given the stage's number.
        agree: called with a text ahead of each function's first run; raises if the ranks of all stages don't come with the
            same one.
        machine_of: for each device the number of its machine.
        begin: called when a step begins, so that a rank which waits in it can be told from one that hasn't come.
        gather: returns the arrays of all ranks, given this rank's and what they are.
    """

    stages: Stages
    views: tuple[StageView, ...]
    orders: Orders
    engines: Mapping[int, Engine]
    transfers: Callable[[], Transfers]
    machine_of: tuple[int, ...]
    share: Share = lambda stage, values: values or ()
    describe: Callable[[int, StageState | None], StageState] = _own
    agree: Callable[[str], None] = lambda text: None
    begin: Callable[[], None] = lambda: None
    gather: Callable[[np.ndarray, str], Sequence[np.ndarray]] = lambda value, what: [value]
    _functions: dict[tuple[Fetch, tuple[Feed, ...]], _Function] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _ = self._described  # all processes exchange it now, and not whenever one of them first needs it

    @property
    def graph(self) -> Graph:
        """The graph of the whole model."""
        return self.stages.whole.graph

    @property
    def backend(self) -> Backend:
        """Return the backend of the stages that this process builds; of one of them, where it builds all."""
        return next(iter(self.engines.values())).backend

    @backend.setter
    def backend(self, backend: Backend) -> None:
        for engine in self.engines.values():
            engine.backend = backend

    @property
    def initial_value(self) -> Callable[[str], np.ndarray]:
        """Return the function that returns the global initial value of a variable, given by its operator's name."""
        return next(iter(self.engines.values())).initial_value

    @initial_value.setter
    def initial_value(self, value: Callable[[str], np.ndarray]) -> None:
        for engine in self.engines.values():
            engine.initial_value = value

    @cached_property
    def optimizers(self) -> dict[str, StagedOptimizer]:
        """The optimizer of each training step, over all stages, by the step's name."""
        steps = next(iter(self.engines.values())).optimizers
        return {step: StagedOptimizer(step, self.state, self._averages, self._running(step)) for step in steps}

    def _running(self, step: str) -> tuple[RunningOptimizer, ...]:
        return tuple(engine.optimizers[step] for _, engine in sorted(self.engines.items()))

    @property
    def _averages(self) -> tuple[tuple[str, str], ...]:
        return tuple(pair for stage in self._described for pair in stage.averages)

    def initialize(self) -> None:
        """Reset all variables, the optimizers' too, to their initial values."""
        for engine in self.engines.values():
            engine.initialize()

    def state(self) -> tuple[StateEntry, ...]:
        """Return all variables in a fixed order, the same in all processes; those of other stages have no shards here."""
        stages = [self._state_of(stage) if stage in self.engines else each for stage, each in enumerate(self._described)]
        return state_of_all(stages, len({device for view in self.views for device in view.devices}))

    def _state_of(self, stage: int) -> StageState:
        engine = self.engines[stage]
        running = dict.fromkeys(engine.optimizers.values())
        averages = tuple(pair for each in running for pair in getattr(each, "averages", ()))
        return StageState(self.views[stage].devices[0], engine.state(), averages)

    @cached_property
    def _described(self) -> list[StageState]:
        """The states of all stages, without shards."""
        own = {stage: self._state_of(stage).described for stage in self.engines}
        return [self.describe(stage, own.get(stage)) for stage in range(self.stages.n)]

    @property
    def local_parameter_bytes(self) -> list[int]:
        """Return, for each rank that is built here, the bytes of its shards of its stages' trainable variables."""
        found: dict[tuple[int, ...], list[int]] = {}
        for stage, engine in sorted(self.engines.items()):
            own, devices = engine.local_parameter_bytes, self.views[stage].devices
            found[devices] = [a + b for a, b in zip(found.get(devices, [0] * len(own)), own, strict=True)]
        return [n_bytes for of_ranks in found.values() for n_bytes in of_ranks]

    @property
    def collectives_per_step(self) -> int:
        """The number of collectives in the training function that was built last; 0 if none was built."""
        logs = [built.log for (fetch, _), built in self._functions.items() if fetch.train_steps]
        return len(logs[-1]) if logs else 0

    @cached_property
    def micro_batches(self) -> tuple[tuple[MicroBatch, ...], ...]:
        """The micro-batches of each stage, none where the program doesn't train.

        They take the same samples in all stages, however many devices these have.
        """
        found = [view.per_micro_batch.graph.micro_batching for view in self.views]
        return tuple(() if each is None else tuple(MicroBatch(each, i, 1) for i in range(each.n)) for each in found)

    def run(self, fetch: Fetch, feeds: Fed) -> list[list[np.ndarray]]:
        """Run the function for these fetches and feeds once.

        Returns:
            For each fetched tensor its global value.

        Raises:
            InputError: another thread runs a step, a placeholder isn't fed, an operator can't take a value, or a rank's
                shard is fetched.
        """
        local = next((tensor for tensor, is_local in fetch.tensors if is_local), None)
        if local is not None:
            raise InputError(
                f"tensoropt.local asks for this rank's shard of {local.name}, which only ranks of one stage have; fetch it "
                "without tensoropt.local, or ask for stages=1"
            )
        with only_step:
            feeds = self._whole(feeds)
            built = self.function(fetch, tuple(feeds))
            arguments = [self._argument(fetch, each, np.asarray(feeds[each.feed])) for each in built.arguments]
            with ExitStack() as stack:
                stack.enter_context(RefusedValues(self.graph))
                for engine in self.engines.values():
                    stack.enter_context(engine.backend.watched(built.log))
                self.begin()
                values = iter([value.numpy() for value in built.call(*arguments)])
            check_memory_left()
        own = {stage: [next(values) for each in built.results if each == stage] for stage in sorted(self.engines)}
        found = {stage: iter(self.share(stage, own.get(stage))) for stage in sorted(set(built.results))}
        return [[next(found[stage])] for stage in built.results]

    def _whole(self, feeds: Fed) -> Fed:
        """Return feeds with whole tensors, each in place of the ranks' shares of it.

        A stage needs samples that other stages' ranks have loaded, so all ranks are given all of them.
        """
        return {
            Feed(feed.tensor, False): np.concatenate(self.gather(np.asarray(value), f"the shares of {feed.tensor.name}"))
            if feed.is_local
            else value
            for feed, value in feeds.items()
        }

    def _argument(self, fetch: Fetch, argument: _Argument, value: np.ndarray) -> tf.Tensor:
        feed, stage, rank, is_whole = argument
        layout = self.views[stage].whole.layout(feed.tensor)
        shard = rank_shard(value, layout, feed.tensor.shape, rank, () if is_whole else self.of_feed(fetch, feed, stage))
        return tf.constant(np.ascontiguousarray(shard).reshape(shard.shape))

    def of_feed(self, fetch: Fetch, feed: Feed, stage: int) -> tuple[MicroBatch, ...]:
        """Return the micro-batches into which a stage's feed is cut."""
        found = self.micro_batches[stage]
        return found if fetch.train_steps and comes_in_micro_batches(feed, found) else ()

    def rebuild_steps(self) -> None:
        """Build the functions of training steps again when they next run."""
        self._functions = {key: built for key, built in self._functions.items() if not key[0].train_steps}

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
        self.agree(f"runs {names(fetch)} on {', '.join(feed.tensor.name for feed in feeds)}")
        parts = self._parts(fetch, {feed.tensor.name for feed in feeds})
        for stage, engine in self.engines.items():
            engine.add_runs(parts[stage].needed | parts[stage].ahead)
        arguments = tuple(
            _Argument(feed, stage, rank, is_whole)
            for feed in feeds
            for stage, engine in sorted(self.engines.items())
            for is_whole in (False, True)
            if self._takes(fetch, parts[stage], feed, stage, is_whole)
            for rank in engine.backend.ranks
        )
        resharders = self._resharders()
        first = {id(each): stage for stage, each in reversed(resharders.items())}
        unique = {stage: resharders[stage] for stage in sorted(first.values())}

        def body(*given: tf.Tensor) -> list[tf.Tensor]:
            fed: dict[int, dict[Feed, Values]] = {stage: {} for stage in self.engines}
            fed_whole: dict[int, dict[Feed, Values]] = {stage: {} for stage in self.engines}
            for argument, value in zip(arguments, given, strict=True):
                of_stage = (fed_whole if argument.is_whole else fed)[argument.stage]
                of_stage.setdefault(argument.feed, []).append(value)
            with ExitStack() as stack:
                for resharder in unique.values():
                    stack.enter_context(resharder.building())
                results = PipelineEmission(self, fetch, parts, fed, fed_whole, resharders).run()
                for stage, engine in self.engines.items():
                    engine.count_runs(parts[stage].needed | parts[stage].ahead)
                return [tf.identity(values[0]) for _, of_stage in sorted(results.items()) for values in of_stage]

        signature = [self._signature(fetch, *argument) for argument in arguments]
        function = tf.function(body, input_signature=signature, autograph=False).get_concrete_function()
        for stage, resharder in unique.items():
            self.engines[stage].agree(structure_digest(function.graph, resharder.log), resharder.log)
        log = tuple(entry for resharder in unique.values() for entry in resharder.log)
        return _Function(function, log, arguments, tuple(self.stages.home(tensor) for tensor, _ in fetch.tensors))

    def _resharders(self) -> dict[int, Resharder]:
        """Return by stage what emits its reshardings.

        Stages on one rank have one, so that their collectives and messages run in one chain.
        """
        found: dict[int, Resharder] = {}
        for stage, engine in sorted(self.engines.items()):
            alike = (found[other] for other in found if self.engines[other].backend is engine.backend)
            found[stage] = next(alike, None) or Resharder(engine.backend)
        return found

    def _takes(self, fetch: Fetch, part: StagePart, feed: Feed, stage: int, is_whole: bool) -> bool:
        """Return whether a stage takes a feed: as its micro-batches need it, or as one for what it runs ahead."""
        graph = self.views[stage].whole.graph
        if feed.tensor.name not in graph.tensors:
            return False
        if not is_whole:
            return True
        runs_ahead = any(op.name in part.ahead for op in graph.consumers.get(feed.tensor.name, ()))
        return runs_ahead and bool(self.of_feed(fetch, feed, stage))

    def _signature(self, fetch: Fetch, feed: Feed, stage: int, rank: int, is_whole: bool) -> tf.TensorSpec:
        layout = self.views[stage].whole.layout(feed.tensor)
        micro_batches = () if is_whole else self.of_feed(fetch, feed, stage)
        return tf.TensorSpec(fed_shape(layout, feed.tensor.shape, micro_batches), feed.tensor.dtype)

    def _parts(self, fetch: Fetch, fed: set[str]) -> list[StagePart]:
        """Return what each stage does in a function.

        Raises:
            InputError: a placeholder that is needed isn't fed.
        """
        asked: set[tuple[str, int]] = set()
        parts: list[StagePart] = []
        for stage in reversed(range(self.stages.n)):
            graph = self.views[stage].whole.graph
            tensors = tuple(each for each in fetch.tensors if self.stages.home(each[0]) == stage)
            operators = tuple(name for name in fetch.operators if name in graph.operators)
            own = Fetch(tensors, fetch.train_steps, operators)
            crossing = [graph.tensors[each.tensor] for each in self._sent(stage) if (each.tensor, each.target) in asked]
            received = {each.tensor for each in self._received(stage)}
            needed = operators_of(graph, own, fed) | graph.ancestors(crossing, (), fed)
            needed = self._without_stand_ins(graph, needed) - self._ahead_alone(graph, own, needed)
            for name in sorted(needed):
                op = graph.operators[name]
                if op.type == PLACEHOLDER and op.result.name in received:
                    asked.add((op.result.name, stage))
                    needed.discard(name)
            self._check_fed(graph, needed, fetch)
            parts.insert(0, StagePart(own, needed))
        return [replace(part, ahead=self._run_ahead(stage, asked, fed, fetch)) for stage, part in enumerate(parts)]

    def _without_stand_ins(self, graph: Graph, names_of: set[str]) -> set[str]:
        """Return operators without those of a stage's stand-in loss."""
        return {name for name in names_of if name in self.graph.operators or graph.operators[name].type == PLACEHOLDER}

    def _ahead_alone(self, graph: Graph, own: Fetch, needed: set[str]) -> set[str]:
        """Return the lookups that a stage runs ahead alone: nothing that it needs otherwise uses their rows."""
        fetched = {tensor.name for tensor, _ in own.tensors}
        return {
            name
            for name in needed.intersection(self.stages.ahead.lookups)
            if graph.operators[name].result.name not in fetched
            and not any(
                op.name in needed and op.name in self.graph.operators
                for op in graph.consumers.get(graph.operators[name].result.name, ())
            )
        }

    def _run_ahead(self, stage: int, asked: set[tuple[str, int]], fed: set[str], fetch: Fetch) -> frozenset[str]:
        """Return the names of the operators that a stage runs ahead, for other stages."""
        graph = self.views[stage].whole.graph
        rows = [each for each in self.stages.crossings if each.source == stage and each.is_ahead]
        found = graph.ancestors([graph.tensors[r.tensor] for r in rows if (r.tensor, r.target) in asked], (), fed)
        self._check_fed(graph, found, fetch)
        return frozenset(found)

    def _check_fed(self, graph: Graph, needed: Collection[str], fetch: Fetch) -> None:
        """Check that all placeholders that operators need are fed.

        Raises:
            InputError: one isn't.
        """
        for name in sorted(needed):
            op = graph.operators[name]
            if op.type == PLACEHOLDER:
                raise InputError(f"placeholder '{op.name}' ({op.source}) isn't fed, but {names(fetch)} needs it; feed it")

    def _sent(self, stage: int) -> Iterator[Crossing]:
        return (each for each in self.stages.crossings if each.source == stage and not each.is_ahead)

    def _received(self, stage: int) -> Iterator[Crossing]:
        return (each for each in self.stages.crossings if each.target == stage)
