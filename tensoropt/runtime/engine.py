"""Run a model under a strategy: local variables, feeds, fetches and training steps.

For each set of fetches and feeds the engine builds, once, one TensorFlow function with just what these need. Every rank
builds the same functions in the same order. Variables are read when a function starts and updated when it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import tensorflow as tf

from ..common.errors import InputError
from ..common.progress import NOT_SHOWN, Display
from ..common.settings import LAG
from ..ir.graph import PLACEHOLDER, Graph, Operator, TrainStep
from ..ir.micro_batching import MicroBatch
from ..lowering.emission import Sources, TaskEmission
from ..lowering.operators import Values
from ..lowering.pass_chain import PassChain
from ..lowering.resharding.reshard import Backend, Collective, Resharder
from ..lowering.variables import StateEntry, local_variables
from ..optimizers.running_optimizer import Emission, PendingUpdate, RunningOptimizer, Shards
from ..optimizers.start import start_optimizer
from ..program.fetch import Fetch, operators_of
from ..program.step import step_program
from ..rules.random import FROM_SEED
from ..sharding.resharding import PathFinder, Resharding
from ..sharding.strategy import StrategyView
from .fed_values import FedValues
from .feed_shards import comes_in_micro_batches, fed_layout, fed_shape, rank_shard
from .functions import BuiltFunction, FedSpec, Feed, flat, names, structure_digest
from .process_limit import check_memory_left
from .step_emission import Gradients, StepEmission
from .step_errors import RefusedValues, only_step

UPDATE_OPERATORS = {
    "AssignVariableOp": "assign",
    "AssignAddVariableOp": "assign_add",
    "AssignSubVariableOp": "assign_sub",
}


@dataclass
class Engine:
    """The execution of a model under a strategy, on the ranks that this process builds.

    Attributes:
        view: the strategy on its graph.
        path_finder: finds the path of each resharding.
        backend: carries out the paths.
        initial_value: returns the global initial value of a variable, given by its operator's name.
        agree: called with a digest and the log of collectives of each function before its first run; raises if ranks differ,
            and prepares the collectives.
        first: another engine, whose variables and optimizers this one shares where it has the same; None without.
        per_micro_batch: the strategy on the graph of one micro-batch, if training steps run in several; else None.
        in_order: whether the backward pass runs in a fixed order; see :mod:`..lowering.order`.
        lag: for at most this many operators the backward pass goes on while a gradient is on its way; see the same module.
        display: shows that a function is being built, and runs for the first time.
        variables: by operator name, a variable's shards on the ranks that are built here.
        optimizers: the optimizer of each training step, by the step's name.
        runs: by the names of random operators with a seed, how often each has drawn, whatever was fetched.
    """

    view: StrategyView
    path_finder: PathFinder
    backend: Backend
    initial_value: Callable[[str], np.ndarray]
    agree: Callable[[str, Sequence[Collective]], None] = lambda digest, log: None
    first: Engine | None = None
    per_micro_batch: StrategyView | None = None
    in_order: bool = False
    lag: float = LAG
    display: Display = NOT_SHOWN
    variables: dict[str, list[tf.Variable]] = field(default_factory=dict)
    optimizers: dict[str, RunningOptimizer] = field(default_factory=dict)
    runs: dict[str, tf.Variable] = field(default_factory=dict)
    _functions: dict[tuple[Fetch, tuple[Feed, ...]], BuiltFunction] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _add_in_one_order()
        if self.first is not None:
            self.variables = self.first.variables  # what this engine adds, others share, too
            self.optimizers.update(self.first.optimizers)
        for op in self.graph.variables:
            if op.name not in self.variables:
                self.variables[op.name] = self._first_variables(op)
        for step in self.graph.train_steps.values():
            if step.name not in self.optimizers:
                shared = self.optimizers.get(step.of)
                running = start_optimizer(step.optimizer, self._shards(step)) if shared is None else shared
                self.optimizers[step.name] = running

    @property
    def graph(self) -> Graph:
        """The graph of the strategy."""
        return self.view.graph

    def _shards(self, step: TrainStep) -> Shards:
        tensors = tuple(self.graph.operators[name].result for name in step.variables)
        layouts = tuple(self.view.layout(tensor) for tensor in tensors)
        shards = tuple(tuple(self.variables[name]) for name in step.variables)
        return Shards(step.name, step.variables, tensors, layouts, tuple(self.backend.ranks), shards)

    def _first_variables(self, op: Operator) -> list[tf.Variable]:
        replicated = self.initial_value(op.name)
        return local_variables(replicated, op.result, self.view.layout(op.result), self.backend.ranks, op.name)

    def initialize(self) -> None:
        """Reset all variables, the optimizers' too, to their initial values."""
        for op in self.graph.variables:
            for variable, value in zip(self.variables[op.name], self._first_variables(op), strict=True):
                variable.assign(value)
        for optimizer in dict.fromkeys(self.optimizers.values()):
            optimizer.reset()

    def state(self) -> tuple[StateEntry, ...]:
        """Return all variables in a fixed order: the model's, then those of each training step's optimizer."""
        entries = [
            StateEntry(
                op.name,
                op.result.shape,
                op.result.dtype,
                self.view.layout(op.result),
                tuple(self.variables[op.name]),
                tuple(self.backend.ranks),
            )
            for op in self.graph.variables
        ]
        optimizers = dict.fromkeys(self.optimizers.values())
        return tuple(entries + [entry for optimizer in optimizers for entry in optimizer.state()])

    @property
    def local_parameter_bytes(self) -> list[int]:
        """Return, for each rank that is built here, the bytes of its shards of the trainable variables."""
        totals = [0] * len(self.backend.ranks)
        for op in self.graph.variables:
            if op.is_trainable:
                for i, rank in enumerate(self.backend.ranks):
                    local = self.view.layout(op.result).local_shape(op.result.shape, rank)
                    totals[i] += int(np.prod(local)) * op.result.item_bytes
        return totals

    @property
    def collectives_per_step(self) -> int:
        """The number of collectives in the training function that was built last; 0 if none was built."""
        logs = [built.log for (fetch, _), built in self._functions.items() if fetch.train_steps]
        return len(logs[-1]) if logs else 0

    def run(self, fetch: Fetch, feeds: Mapping[Feed, np.ndarray | tf.Tensor]) -> list[list[np.ndarray]]:
        """Run the function for these fetches and feeds once.

        A global value that is fed as an array is cut into shards. A tensor that needs no cut is taken as it is, without a
        copy.

        Returns:
            For each fetched tensor, its value on each rank that is built here.

        Raises:
            InputError: another thread runs a step, a placeholder isn't fed, or an operator can't take a value.
        """
        with only_step:
            built = self._functions.get((fetch, tuple(feeds)))
            if built is not None:
                return self._run(built, fetch, feeds)
            with self.display.phase("first step" if fetch.train_steps else "first run of a program"):
                return self._run(self.function(fetch, tuple(feeds)), fetch, feeds)

    def _run(
        self, built: BuiltFunction, fetch: Fetch, feeds: Mapping[Feed, np.ndarray | tf.Tensor]
    ) -> list[list[np.ndarray]]:
        arguments = []
        as_specified = True
        of_feeds = built.is_whole, built.layouts, built.micro_batches, built.specs
        for (feed, value), is_whole, layout, micro_batches, spec in zip(feeds.items(), *of_feeds, strict=True):
            for rank in self.backend.ranks:
                if is_whole and isinstance(value, tf.Tensor):
                    arguments.append(value)
                    as_specified = as_specified and spec.fits(value)
                    continue
                shard = value if is_whole else rank_shard(np.asarray(value), layout, feed.tensor.shape, rank, micro_batches)
                if not shard.flags.c_contiguous:
                    shard = np.ascontiguousarray(shard).reshape(shard.shape)
                arguments.append(tf.constant(shard))
                as_specified = as_specified and spec.fits(shard)
        with RefusedValues(self.graph), self.backend.watched(built.log):
            flat = [value.numpy() for value in built.run(arguments, as_specified)]
        check_memory_left()
        n_ranks = len(self.backend.ranks)
        return [flat[i : i + n_ranks] for i in range(0, n_ranks * len(fetch.tensors), n_ranks)]

    def rebuild_steps(self) -> None:
        """Build the functions of training steps again when they next run."""
        self._functions = {key: built for key, built in self._functions.items() if not key[0].train_steps}

    def function(self, fetch: Fetch, feeds: tuple[Feed, ...]) -> BuiltFunction:
        """Return the function for these fetches and feeds, which is built the first time.

        Raises:
            InputError: a placeholder that is needed isn't fed.
        """
        key = (fetch, feeds)
        if key not in self._functions:
            self._functions[key] = self._build(fetch, feeds)
        return self._functions[key]

    def _build(self, fetch: Fetch, feeds: tuple[Feed, ...]) -> BuiltFunction:
        needed = operators_of(self.graph, fetch, {feed.tensor.name for feed in feeds})
        # In program order, so that all ranks name the same placeholder.
        for op in self.graph.operators.values():
            if op.name in needed and op.type == PLACEHOLDER:
                raise InputError(f"placeholder '{op.name}' ({op.source}) isn't fed, but {names(fetch)} needs it; feed it")
        self.add_runs(needed)
        resharder = Resharder(self.backend)
        n_ranks = len(self.backend.ranks)

        def body(*arguments: tf.Tensor) -> list[tf.Tensor]:
            groups = [list(arguments[i : i + n_ranks]) for i in range(0, len(arguments), n_ranks)]
            with resharder.building():
                results = self._emit(fetch, dict(zip(feeds, groups, strict=True)), needed, resharder)
                self.count_runs(needed)
                return results

        micro_batches = self._micro_batches(fetch)
        of_feeds = tuple(
            micro_batches if not feed.is_local and comes_in_micro_batches(feed, micro_batches) else () for feed in feeds
        )
        signature = [
            tf.TensorSpec(fed_shape(fed_layout(self.view, feed), feed.tensor.shape, in_micro_batches), feed.tensor.dtype)
            for feed, in_micro_batches in zip(feeds, of_feeds, strict=True)
            for _ in range(n_ranks)
        ]
        function = tf.function(body, input_signature=signature, autograph=False).get_concrete_function()
        self.agree(structure_digest(function.graph, resharder.log), resharder.log)
        layouts = tuple(fed_layout(self.view, feed) for feed in feeds)
        is_whole = tuple(
            feed.is_local or (layout.is_replicated and not cut_into)
            for feed, layout, cut_into in zip(feeds, layouts, of_feeds, strict=True)
        )
        specs = tuple(map(FedSpec.of, signature[::n_ranks]))
        return BuiltFunction(function, tuple(resharder.log), layouts, of_feeds, is_whole, specs)

    def _micro_batches(self, fetch: Fetch) -> tuple[MicroBatch, ...]:
        """Return the micro-batches in which a function runs; empty if it runs on the batch as a whole."""
        micro_batching = self.per_micro_batch.graph.micro_batching if self.per_micro_batch is not None else None
        if not fetch.train_steps or micro_batching is None:
            return ()
        return tuple(MicroBatch(micro_batching, i, self.backend.mesh.n_devices) for i in range(micro_batching.n))

    def _emit(self, fetch: Fetch, fed: Mapping[Feed, Values], needed: set[str], resharder: Resharder) -> list[tf.Tensor]:
        micro_batches, given = self._micro_batches(fetch), frozenset(feed.tensor.name for feed in fed)
        view = self.per_micro_batch if micro_batches and self.per_micro_batch is not None else self.view
        program = step_program(view, self.path_finder, fetch=fetch, given=given, in_buckets=resharder.joins)
        is_ordered = self.in_order and not self.graph.is_sequential
        emission = StepEmission(
            program, view, self.path_finder, resharder, self._sources(fed, needed, micro_batches, resharder), self._update,
            self.optimizers, self._updated, fetch.train_steps,
            PassChain(max(1, len(micro_batches)), self.lag if is_ordered else None), micro_batches,
        )  # fmt: skip
        return flat(emission.results())

    def _sources(
        self, fed: Mapping[Feed, Values], needed: set[str], micro_batches: tuple[MicroBatch, ...], resharder: Resharder
    ) -> Sources:
        """Return functions that emit the values of variables and of what is fed, by tensor name."""
        sources: dict[str, Callable[[int], Values]] = {
            op.result.name: partial(_read, self.variables[op.name]) for op in self.graph.variables if op.name in needed
        }
        taken = FedValues(self.view, self.per_micro_batch, resharder, self.path_finder)
        for feed, values in fed.items():
            if comes_in_micro_batches(feed, micro_batches):
                sources[feed.tensor.name] = taken.in_micro_batches(feed, values, micro_batches[0])
            else:
                sources[feed.tensor.name] = taken.at_once(feed, values)
        return sources

    def add_runs(self, needed: Collection[str]) -> None:
        """Make the counts of the random operators of a function that is about to be built."""
        for name in sorted(needed):
            if self.graph.operators[name].type in FROM_SEED and name not in self.runs:
                self.runs[name] = tf.Variable(tf.zeros([], tf.int64), trainable=False)

    def count_runs(self, needed: Collection[str]) -> None:
        """Emit, at the end of a function, that its random operators have drawn once more."""
        for name, count in sorted(self.runs.items()):
            if name in needed:
                count.assign_add(1)

    def _update(self, op: Operator, operands: list[Values]) -> list[Values]:
        if op.type in FROM_SEED:
            return [[self.runs[op.name].value()] * len(self.backend.ranks)]
        assert op.updates is not None
        variables = self.variables[op.updates]
        if op.type in UPDATE_OPERATORS:
            for variable, value in zip(variables, operands[0], strict=True):
                getattr(variable, UPDATE_OPERATORS[op.type])(value)
            return []
        return [_read(variables)]

    def _reshard_overlappable(
        self, step: TrainStep, emitted: TaskEmission, resharding: Resharding, values: Values
    ) -> Values:
        paths = self.path_finder.paths(resharding)
        return emitted.resharder.reshard(resharding, paths, values, step.name, is_overlappable=True)

    def _updated(
        self,
        step: TrainStep,
        emitted: StepEmission,
        gradients: Gradients,
        indices: Sequence[Sequence[Values]],
    ) -> PendingUpdate:
        """Return the update of a training step, by gradients of which those of rows are on every rank."""

        def read(index: int) -> Values:
            return emitted.local(self.graph.operators[step.variables[index]].result)

        reshard, replicated = partial(self._reshard_overlappable, step, emitted), partial(emitted.hyperparameter, step)
        emission = Emission(read, gradients, indices, reshard, replicated)
        pending, condition = self.optimizers[step.name].train(emission), step.optimizer.condition
        is_applied = None if condition is None else replicated(condition)[0]

        def apply(sums: Values | None) -> None:
            if is_applied is None:
                pending.apply(sums)
            else:  # there is no collective in it
                tf.cond(is_applied, lambda: pending.apply(sums), lambda: None)
            for variable in self.variables[step.step_counter] if step.step_counter is not None else ():
                variable.assign_add(tf.ones([], variable.dtype))

        return PendingUpdate(pending.sums, apply)


def _read(variables: Sequence[tf.Variable], micro_batch: int = -1) -> Values:
    """Emit the reading of a variable's shards."""
    return [variable.value() for variable in variables]


def _add_in_one_order() -> None:
    """Keep TensorFlow from merging additions: AddN starts with whichever operand's memory becomes free first.

    Replicas that are computed on each rank would differ in the last bit from run to run, and drift apart.
    """
    if tf.config.optimizer.get_experimental_options().get("arithmetic_optimization", True):
        tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
