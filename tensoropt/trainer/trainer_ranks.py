"""Run a trainer's operations on all ranks together.

Normally every rank makes the same calls. Inside of :meth:`TrainerRanks.lead` only rank 0 runs the user's code, such as a
callback that saves, predicts or changes the learning rate. Rank 0 announces each operation that needs all ranks to the
others, which wait in :meth:`TrainerRanks.lead` and join in.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, wraps
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from ..common.errors import InputError, TensorOptError
from ..ir.graph import PLACEHOLDER
from ..lowering.variables import StateEntry
from ..optimizers.keras_running import RunningKeras
from ..plan.staged_plan import StagedPlan
from ..runtime.checkpoint import Objects, restore, save
from ..runtime.checkpoint.parts import holders_of
from ..runtime.other_programs import AnyExecution
from ..runtime.pipeline.staged_optimizer import StagedOptimizer
from ..runtime.ranks import Processes
from ..sharding.local_shapes import shard_slices
from .batch import Batch
from .programs import EVALUATE, PREDICT, TRAIN
from .runs import Runs

Value = TypeVar("Value")
Method = TypeVar("Method", bound=Callable[..., Any])
_DO, _DONE, _FAILED = "do", "done", "failed"
_CALLBACKS = "what rank 0 does in its callbacks"


def everywhere(method: Method) -> Method:
    """Mark a method that all ranks must run together: when rank 0 calls it while it leads, the other ranks run it too."""

    @wraps(method)
    def called(self: TrainerRanks, *arguments: Any) -> Any:
        if self.leads:
            self.processes.broadcast((_DO, method.__name__, arguments), _CALLBACKS)
        return method(self, *arguments)

    return called  # type: ignore[return-value]


class TrainerRanks:
    """All ranks of a trainer, with the operations that they run together.

    Attributes:
        processes: the processes that take part; before :meth:`start` all of the run.
        execution: the execution of the plan, after :meth:`start`.
        runs: the trainer's programs, after :meth:`start`.
        objects: returns the user's objects, with the names of their variables in a checkpoint.
        passing: the keys of variables that no checkpoint saves.
        changed: the keys of variables that may have other values than the user's own variables.
        leads: whether this is rank 0 within :meth:`lead`, with the other ranks waiting.
    """

    execution: AnyExecution
    runs: Runs

    def __init__(self, processes: Processes, objects: Callable[[], Objects | None] = lambda: None) -> None:
        self.processes, self.objects = processes, objects
        self.passing: frozenset[str] = frozenset()
        self.changed: set[str] = set()
        self.leads = False
        self._all_state: tuple[int, Mapping[str, StateEntry]] = (0, {})

    def start(self, execution: AnyExecution, runs: Runs) -> None:
        """Make the ranks that a plan needs ready to run its programs."""
        self.execution, self.runs, self.processes = execution, runs, execution.processes

    @property
    def rank(self) -> int:
        """This process's rank."""
        return self.processes.rank

    @property
    def n_shares(self) -> int:
        """The number of shares into which a batch is cut: one for each process, but 1 while rank 0 leads."""
        return 1 if self.leads else self.processes.size

    @cached_property
    def least_shared(self) -> int:
        """The fewest samples of a batch of which each rank takes a share: one each, or none if the plan splits no batch."""
        plan = self.execution.plan
        if isinstance(plan, StagedPlan):
            return sys.maxsize  # its stages have devices of their own, and take the samples of a micro-batch
        fed = (op for op in plan.operators if op.type == PLACEHOLDER and op.results[0].splits)
        is_split = any(op.config.used_axes for op in fed)
        return self.processes.size if is_split else sys.maxsize

    @property
    def optimizer(self) -> RunningKeras | StagedOptimizer:
        """The optimizer of the training step, or the first that it applies."""
        return self.optimizers[TRAIN]

    @cached_property
    def optimizers(self) -> dict[str, RunningKeras | StagedOptimizer]:
        """The optimizers of the training step, by the name of the step that applies each first."""
        first = [step.name for step in self.runs.planned.captured.graph.train_steps.values() if not step.of]
        found = {name: self.execution.engine.optimizers[name] for name in first}
        return {name: running for name, running in found.items() if isinstance(running, (RunningKeras, StagedOptimizer))}

    def lead(self, action: Callable[[], Value]) -> Value:
        """Have rank 0 run an action. Return its result (picklable) or raise its exception, on every rank.

        A KeyboardInterrupt is raised on every rank too, so that a script may catch it and save.
        """
        if self.leads or self.processes.size == 1:
            return action()
        if self.rank:
            return self._follow()
        self.leads = True
        try:
            result = action()
        except (Exception, KeyboardInterrupt) as error:
            self.processes.broadcast((_FAILED, _portable(error), ()), _CALLBACKS)
            raise
        finally:
            self.leads = False
        self.processes.broadcast((_DONE, result, ()), _CALLBACKS)
        return result

    def _follow(self) -> Any:
        while True:
            message: tuple[str, Any, tuple[Any, ...]] = self.processes.broadcast(("", None, ()), _CALLBACKS)
            what, which, arguments = message
            if what == _DONE:
                return which
            if what == _FAILED:
                raise which
            try:
                getattr(self, which)(*arguments)
            except TensorOptError:
                continue  # rank 0 has the same error, and the user's code there decides whether it ends the run

    # Steps

    @everywhere
    def train(self, batch: Batch) -> Any:
        """Run one training step and return its program's results."""
        self.changed |= self._trained
        return self.runs.of(TRAIN, batch)(batch.leaves, batch.is_share)

    @everywhere
    def evaluate(self, batch: Batch) -> Any:
        """Evaluate a batch, which updates the metrics, and return the program's results."""
        self.changed |= self.passing
        return self.runs.of(EVALUATE, batch)(batch.leaves, batch.is_share)

    @everywhere
    def predict(self, batch: Batch) -> Any:
        """Return the model's global results for a batch, in the model's structure."""
        return self.runs.of(PREDICT, batch)(batch.inputs, batch.is_share)

    @everywhere
    def set_rate(self, value: Any) -> None:
        """Set the learning rate of the next steps."""
        self.optimizer.learning_rate = value

    @everywhere
    def finish_training(self) -> None:
        """Run the optimizer's work at the end of training: moving averages may replace the parameters."""
        self.changed |= self._trained
        for optimizer in self.optimizers.values():
            optimizer.finish()

    # State

    @cached_property
    def planned_state(self) -> Mapping[str, StateEntry]:
        """The state entries of the planned step's variables, by key."""
        return {entry.key: entry for entry in self.execution.engine.state()}

    @property
    def state(self) -> Mapping[str, StateEntry]:
        """The state entries of all variables on the ranks, by key: also of those that an evaluation alone uses, say."""
        executions = self.runs.executions
        if len(executions) == 1:
            return self.planned_state
        if self._all_state[0] != len(executions):
            others = {entry.key: entry for each in executions[1:] for entry in each.engine.state()}
            self._all_state = len(executions), {**others, **self.planned_state}
        return self._all_state[1]

    def key_of(self, variable: Any) -> str | None:
        """Return the key of one of the user's variables; None if no program that there is uses it."""
        name = self.runs.names.of(variable)
        return name if name in self.state else None

    @cached_property
    def _trained(self) -> frozenset[str]:
        """The keys of the variables that a training step changes."""
        graph = self.runs.planned.captured.graph
        steps = [name for step in graph.train_steps.values() for name in step.variables]
        return frozenset([*steps, *(op.updates for op in graph.operators.values() if op.updates is not None)])

    def values(self, keys: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        """Yield each variable's key and global value, on every rank; while rank 0 leads, only there."""
        for key in keys:
            entry = self.state[key]
            full = self._gather(key, not self.leads) if not entry.is_whole_here else entry.variables[0].numpy()
            assert full is not None
            yield key, full

    @everywhere
    def _gather(self, key: str, to_all: bool) -> np.ndarray | None:
        entry = self.state[key]
        held: Any = {
            rank: shard.numpy()
            for rank, shard in zip(entry.ranks, entry.variables, strict=True)
            if holders_of(entry.layout, rank)[0] == rank
        }
        found = self.processes.gather((key, held)) if to_all else self.processes.collect((key, held), 0)
        if found is None:
            return None
        for rank, (other, _) in enumerate(found):
            if other != found[0][0]:
                raise InputError(
                    f"rank 0 reads '{found[0][0]}' where rank {rank} reads '{other}': shards are gathered from all ranks, "
                    "so that every rank must read the same, in the same order"
                )
        full = np.empty(entry.shape, tf.as_dtype(entry.dtype).as_numpy_dtype)
        for _, shards in found:
            for rank, shard in shards.items():
                full[shard_slices(entry.layout, entry.shape, rank)] = shard
        return full

    @everywhere
    def assign(self, key: str, value: np.ndarray) -> None:
        """Assign a global value to a variable, of which each rank takes its shard. Every rank must give the same value.

        Raises:
            InputError: the value has another shape than the variable.
        """
        entry = self.state[key]
        if np.shape(value) != tuple(entry.shape):
            raise InputError(
                f"variable '{key}' has shape {list(entry.shape)}, and can't be given {list(np.shape(value))}; give an array "
                "of the variable's whole shape"
            )
        self.changed.add(key)
        entry.assign(value)

    def assign_same(self, checked: Callable[[], Mapping[str, np.ndarray]]) -> None:
        """Assign global values to variables, once they are found valid and equal on all ranks.

        Args:
            checked: returns the values by key, or raises InputError if one is invalid.

        Raises:
            InputError: a value is invalid or differs between ranks. The message is the same on all ranks, and no value has
                changed on any.
        """
        values, refusal = {}, None
        try:
            values = dict(checked())
        except InputError as error:
            refusal = error
        if self.leads or self.processes.size == 1:
            if refusal is not None:
                raise refusal
        else:
            said = None if refusal is None else str(refusal)
            _check_same(self.processes.gather((said, {key: _digest(value) for key, value in values.items()})))
        for key, value in values.items():
            self.assign(key, value)

    # Checkpoints

    @property
    def _kept(self) -> list[StateEntry]:
        """The entries of the variables that a checkpoint saves: all but the metrics of the running epoch."""
        return [entry for key, entry in self.planned_state.items() if key not in self.passing]

    @everywhere
    def save(self, path: str, content: Mapping[str, Any], max_to_keep: int | None) -> None:
        """Save a checkpoint in which each rank writes its shards, with JSON content beside them."""
        objects = self.objects() if self.rank == 0 else None
        save(path, self._kept, self.processes, content, objects=objects, max_to_keep=max_to_keep)

    @everywhere
    def restore(self, path: str) -> Mapping[str, Any]:
        """Assign a checkpoint's values to all variables. Return the JSON content that was saved beside them."""
        self.changed |= self.state.keys()
        return restore(path, self._kept, self.processes, self.objects()).content


def _digest(value: np.ndarray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data, digest_size=16).digest()


def _check_same(given: list[tuple[str | None, dict[str, bytes]]]) -> None:
    """Check that all ranks give valid values, equal to those of rank 0.

    Args:
        given: for each rank, why its values were refused (None if they weren't), and the digests of its values by key.

    Raises:
        InputError: a rank's values were refused, or differ from rank 0's.
    """
    refusals = [refusal for refusal, _ in given]
    for rank, refusal in enumerate(refusals):
        if refusal is not None:
            raise InputError(refusal if refusals.count(refusal) == len(refusals) else f"on rank {rank} {refusal}")
    first = given[0][1]
    for rank, (_, digests) in enumerate(given):
        for key in (*first, *digests):
            if digests.get(key) != first.get(key):
                raise InputError(
                    f"ranks 0 and {rank} assign different values to '{key}'; every rank must give the same, as rank 0's "
                    "broadcast to all, or random ones of one seed"
                )


def _portable(error: BaseException) -> BaseException:
    """Return the exception for other ranks to raise: itself if it can be pickled, so that one rank reports it for all."""
    with suppress(Exception):  # pickling a user's exception may raise anything
        if str(pickle.loads(pickle.dumps(error))) == str(error):
            return error
    return TensorOptError(f"rank 0 failed: {type(error).__name__}: {error}")
