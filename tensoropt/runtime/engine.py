"""Run a model in its stages, usually one: each process builds those of its stages, and all exchange what crosses.

For each set of fetches and feeds the engine builds, once, one TensorFlow function with just what these need. Every rank
builds the same functions in the same order. A training function runs the passes of the micro-batches in the order of the
schedule; others run the stages one after the other, on the whole batch. Variables are read when a function starts and
updated when it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from ..common.process.progress import NOT_SHOWN, Display
from ..lowering.operators import Values
from ..lowering.resharding.reshard import Backend, Resharder
from ..lowering.variables import StateEntry
from ..program.fetch import Fetch
from .execute import same_on_all
from .failures.process_limit import check_memory_left
from .failures.step_errors import RefusedValues, only_step
from .ranks import Processes
from .step.feed_shards import argument_of, comes_in_micro_batches, shard_of
from .step.function_emission import FunctionEmission
from .step.functions import BuiltFunction, FedSpec, Feed, flat, names, structure_digest
from .step.parts import RunningStages, StagePart, parts_of
from .step.state_of_stages import StageEntries, state_of_all
from .step.step_optimizer import StepOptimizer

Returned = list[list[np.ndarray]]
"""For each tensor that a stage returns its value on each rank."""
Fed = Mapping[Feed, np.ndarray | tf.Tensor]
Preparing = Callable[..., Sequence[tf.Tensor]]
"""Makes, in a function's graph, what its feeds are of tensors that it is given; none of these feeds is cut."""


@dataclass
class Engine(RunningStages):
    """The execution of a model, on the stages and ranks that this process builds.

    Attributes:
        joined: the ranks of all stages, if this process builds only some of these; else None.
        display: shows that a function is being built, and runs for the first time.
        out_of_memory: returns the sentence for an allocation that failed.
    """

    joined: Processes | None = None
    display: Display = NOT_SHOWN
    out_of_memory: Callable[[str], str] | None = None
    _functions: dict[tuple[Fetch, tuple[Feed, ...], Preparing | None], BuiltFunction] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _ = self._described  # all processes exchange it now, and not whenever one of them first needs it

    @property
    def backend(self) -> Backend:
        """Return the backend of the stages that this process builds; of one of them, where it builds all."""
        return next(iter(self.states.values())).backend

    @cached_property
    def optimizers(self) -> dict[str, StepOptimizer]:
        """The optimizer of each training step, over all stages, by the step's name."""
        averages = tuple(pair for stage in self._described for pair in stage.averages)
        parts = [state.optimizers for _, state in sorted(self.states.items())]
        return {step: StepOptimizer(step, self.state, averages, tuple(part[step] for part in parts)) for step in parts[0]}

    @property
    def runs(self) -> dict[str, int]:
        """How often each random operator with a seed has drawn, of the stages that this process builds."""
        return {name: int(count) for state in self.states.values() for name, count in state.runs.items()}

    @runs.setter
    def runs(self, counts: Mapping[str, int]) -> None:
        for state in self.states.values():
            state.runs_before = counts
            for name, count in state.runs.items():
                count.assign(counts.get(name, 0))

    def initialize(self, initial_value: Callable[[str], np.ndarray] | None = None) -> None:
        """Reset all variables, the optimizers' too, to their initial values: from now on those that a function returns."""
        for state in self.states.values():
            state.initial_value = initial_value or state.initial_value
            state.initialize()

    def state(self) -> tuple[StateEntry, ...]:
        """Return all variables in a fixed order, the same in all processes; those of other stages have no shards here."""
        stages = [self._entries_of(stage) if stage in self.states else entry for stage, entry in enumerate(self._described)]
        return state_of_all(stages, len({device for view in self.views for device in view.devices}))

    def _entries_of(self, stage: int) -> StageEntries:
        state = self.states[stage]
        optimizers = dict.fromkeys(state.optimizers.values())
        averages = tuple(pair for optimizer in optimizers for pair in getattr(optimizer, "averages", ()))
        return StageEntries(self.views[stage].devices[0], state.state(), averages)

    @cached_property
    def _described(self) -> list[StageEntries]:
        """The entries of all stages, without shards."""
        entries = {stage: self._entries_of(stage).described for stage in self.states}
        return [self.share(stage, entries.get(stage), "the description of a stage") for stage in range(self.stages.n)]

    def share(self, stage: int, value: Any, what: str = "what a step returns") -> Any:
        """Return what the first rank of a stage has; the ranks of all stages call it."""
        if self.joined is None:
            return value
        first = self.views[stage].devices[0]
        return self.joined.gather(value if self.joined.rank == first else None, what)[first]

    @property
    def local_parameter_bytes(self) -> list[int]:
        """Return, for each rank that is built here, the bytes of its shards of its stages' trainable variables."""
        totals: dict[tuple[int, ...], list[int]] = {}
        for stage, state in sorted(self.states.items()):
            shard_bytes, devices = state.local_parameter_bytes, self.views[stage].devices
            totals[devices] = [a + b for a, b in zip(totals.get(devices, [0] * len(shard_bytes)), shard_bytes, strict=True)]
        return [n_bytes for rank_bytes in totals.values() for n_bytes in rank_bytes]

    @property
    def collectives_per_step(self) -> int:
        """The number of collectives in the training function that was built last; 0 if none was built."""
        logs = [function.log for (fetch, *_), function in self._functions.items() if fetch.train_steps]
        return len(logs[-1]) if logs else 0

    def run(self, fetch: Fetch, feeds: Fed, preparing: Preparing | None = None, raw: Sequence[tf.Tensor] = ()) -> Returned:
        """Run the function for these fetches and feeds once.

        A global value that is fed as an array is cut into shards. With ``preparing``, the function makes the feeds' values
        of ``raw``, whose shapes stay.

        Returns:
            For each fetched tensor its value on each rank of its stage that is built here; of a stage that isn't, the global
            value on its first rank, and no shards.

        Raises:
            InputError: another thread runs a step, a placeholder isn't fed, or an operator can't take a value.
        """
        with only_step:
            feeds = feeds if self.is_everywhere else self._whole(feeds)
            function = self._functions.get((fetch, tuple(feeds), preparing))
            if function is not None:
                return self._run(function, feeds, raw)
            with self.display.phase("first step" if fetch.train_steps else "first run of a program"):
                return self._run(self.function(fetch, tuple(feeds), preparing, raw), feeds, raw)

    def _run(self, function: BuiltFunction, feeds: Fed, raw: Sequence[tf.Tensor]) -> Returned:
        arguments, is_as_specified, feed_values = list(raw), True, tuple(feeds.values())
        for argument in function.arguments if not raw else ():
            shard = shard_of(argument, feed_values[argument.number])
            is_as_specified = is_as_specified and argument.spec.fits(shard)
            arguments.append(shard if isinstance(shard, tf.Tensor) else tf.constant(shard))
        with RefusedValues(self.graph, self.out_of_memory), self.backend.watched(function.log):
            if self.joined is not None:  # so that a rank which waits in a step can be told from one that hasn't come
                self.joined.begin_collective()
            values = iter([value.numpy() for value in function.run(arguments, is_as_specified)])
        check_memory_left()
        results = {
            number: [next(values) for _ in state.backend.ranks]
            for stage, state in sorted(self.states.items())
            for number, (home, _) in enumerate(function.results)
            if home == stage
        }
        for stage in sorted({home for home, is_local in function.results if not is_local}):
            numbers = [number for number, result in enumerate(function.results) if result == (stage, False)]
            own = [results[number] for number in numbers] if stage in self.states else None
            results.update(zip(numbers, self.share(stage, own), strict=True))
        return [results.get(number, []) for number in range(len(function.results))]

    def _whole(self, feeds: Fed) -> Fed:
        """Return feeds with whole tensors, each in place of the ranks' shares of it.

        A stage needs samples that other stages' ranks have loaded, so all ranks are given all of them.
        """
        gather = self.joined.gather if self.joined is not None else lambda value, what: [value]
        return {
            Feed(feed.tensor, False): np.concatenate(gather(np.asarray(value), f"the shares of {feed.tensor.name}"))
            if feed.is_local
            else value
            for feed, value in feeds.items()
        }

    def rebuild_steps(self) -> None:
        """Build the functions of training steps again when they next run."""
        self._functions = {key: function for key, function in self._functions.items() if not key[0].train_steps}

    def function(
        self, fetch: Fetch, feeds: tuple[Feed, ...], preparing: Preparing | None = None, raw: Sequence[tf.Tensor] = ()
    ) -> BuiltFunction:
        """Return the function for these fetches and feeds, which is built the first time.

        Raises:
            InputError: a placeholder that is needed isn't fed.
        """
        key = (fetch, feeds, preparing)
        if key not in self._functions:
            self._functions[key] = self._build(*key, raw)
        return self._functions[key]

    def _build(
        self, fetch: Fetch, feeds: tuple[Feed, ...], preparing: Preparing | None, raw: Sequence[tf.Tensor]
    ) -> BuiltFunction:
        if self.joined is not None:
            own = ", ".join(tensor.name for tensor, is_local in fetch.tensors if is_local)
            fed = ", ".join(feed.tensor.name for feed in feeds)
            same_on_all(self.joined)(f"runs {names(fetch)} on {fed}{own and f', by rank {own}'}")
        parts = parts_of(self.stages, self.views, fetch, {feed.tensor.name for feed in feeds})
        for stage, state in self.states.items():
            state.add_runs(parts[stage].needed | parts[stage].ahead)
        arguments = tuple(
            argument_of(self.views[stage].whole, feed, number, stage, rank, self.micro_batches_of(fetch, stage), is_ahead)
            for number, feed in enumerate(feeds)
            for stage, state in sorted(self.states.items())
            for is_ahead in (False, True)
            if self._takes(fetch, parts[stage], feed, stage, is_ahead)
            for rank in state.backend.ranks
        )
        resharders = self._resharders()
        first = {id(item): stage for stage, item in reversed(resharders.items())}
        unique = {stage: resharders[stage] for stage in sorted(first.values())}

        def body(*tensors: tf.Tensor) -> list[tf.Tensor]:
            fed: dict[tuple[int, bool], dict[Feed, Values]] = {}
            if preparing is not None:
                prepared = preparing(*tensors)
                tensors = tuple(prepared[arg.number] for arg in arguments)
            for argument, value in zip(arguments, tensors, strict=True):
                stage_feeds = fed.setdefault((argument.stage, argument.is_ahead), {})
                stage_feeds.setdefault(argument.feed, []).append(value)
            with ExitStack() as stack:
                for resharder in unique.values():
                    stack.enter_context(resharder.building())
                results = FunctionEmission(self, fetch, parts, fed, resharders).run()
                for stage, state in self.states.items():
                    state.count_runs(parts[stage].needed | parts[stage].ahead)
                return flat([values for _, stage_values in sorted(results.items()) for values in stage_values])

        specs: Sequence[FedSpec | tf.Tensor] = raw or [argument.spec for argument in arguments]
        signature = [tf.TensorSpec(spec.shape, spec.dtype) for spec in specs]
        function = tf.function(body, input_signature=signature, autograph=False).get_concrete_function()
        for stage, resharder in unique.items():
            self.states[stage].agree(structure_digest(function.graph, resharder.log), resharder.log)
        log = tuple(entry for resharder in unique.values() for entry in resharder.log)
        results = tuple((self.stages.home(tensor), is_local) for tensor, is_local in fetch.tensors)
        return BuiltFunction(function, log, arguments, results)

    def _resharders(self) -> dict[int, Resharder]:
        """Return by stage what emits its reshardings.

        Stages on one rank have one, so that their collectives and messages run in one chain.
        """
        resharders: dict[int, Resharder] = {}
        for stage, state in sorted(self.states.items()):
            candidates = (resharders[peer] for peer in resharders if self.states[peer].backend is state.backend)
            resharders[stage] = next(candidates, None) or Resharder(state.backend)
        return resharders

    def _takes(self, fetch: Fetch, part: StagePart, feed: Feed, stage: int, is_ahead: bool) -> bool:
        """Return whether a stage takes a feed: as its micro-batches need it, or as one for what it runs ahead."""
        graph = self.views[stage].whole.graph
        if feed.tensor.name not in graph.tensors:
            return False
        if not is_ahead:
            return True
        runs_ahead = any(op.name in part.ahead for op in graph.consumers.get(feed.tensor.name, ()))
        return runs_ahead and comes_in_micro_batches(feed, self.micro_batches_of(fetch, stage))
