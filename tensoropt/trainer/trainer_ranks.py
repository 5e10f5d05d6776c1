"""Run a trainer's operations on all ranks together.

The shards are copies of the user's variables (:mod:`.variables.live`): before an operation they take what the user has
assigned, or what another trainer has trained.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property, wraps
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from ..common.errors import InputError
from ..common.source_lines import running_line
from ..ir.graph import PLACEHOLDER
from ..lowering.variables import StateEntry
from ..optimizers.copies import as_text
from ..optimizers.keras_running import RunningKeras
from ..runtime.checkpoint import Objects, restore, save
from ..runtime.execution import Execution
from ..runtime.ranks import Processes
from ..runtime.same_data import check_same, whole_digest
from ..runtime.step.step_optimizer import StepOptimizer
from .batch import Batch
from .capture.optimizer_reads import copies_on_ranks
from .capture.programs import EVALUATE, PREDICT, TRAIN
from .runs import Run, Runs
from .variables.leading import LedRanks, everywhere
from .variables.live import Live, hold_optimizer, own_values, settle

Method = TypeVar("Method", bound=Callable[..., Any])


def caught_up(method: Method) -> Method:
    """Mark a method that needs the newest values in the shards; while rank 0 leads, it sees to them for all."""

    @wraps(method)
    def called(self: TrainerRanks, *arguments: Any) -> Any:
        if not self.follows:
            self.catch_up()
        return method(self, *arguments)

    return called  # type: ignore[return-value]


class TrainerRanks(LedRanks):
    """All ranks of a trainer, with the operations that they run together.

    Attributes:
        processes: the processes that take part; before :meth:`start` all of the run.
        execution: the execution of the plan, after :meth:`start`.
        runs: the trainer's programs, after :meth:`start`.
        objects: returns the user's objects, with the names of their variables in a checkpoint.
        passing: the keys of variables that no checkpoint saves.
        changed: the keys of variables whose newest copy are these shards.
        outdated: the keys of variables whose shards aren't up to date, and whether the user's code has assigned to them.
        lives: what is known of each variable, by key.
    """

    execution: Execution
    runs: Runs

    def __init__(self, processes: Processes, objects: Callable[[], Objects | None] = lambda: None) -> None:
        super().__init__(processes)
        self.objects = objects
        self.passing: frozenset[str] = frozenset()
        self.changed: set[str] = set()
        self.outdated: dict[str, bool] = {}
        self.lives: dict[str, Live] = {}
        self._n_noticed = 0
        self._shown: dict[str, tf.Variable] = {}
        self._all_state: tuple[int, Mapping[str, StateEntry]] = (0, {})

    def start(self, execution: Execution, runs: Runs) -> None:
        """Make the ranks that a plan needs ready to run its programs."""
        self.execution, self.runs, self.processes = execution, runs, execution.processes
        self._notice()

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
        if len(plan.stages) > 1:
            return sys.maxsize  # its stages have devices of their own, and take the samples of a micro-batch
        placeholders = (op for op in plan.operators if op.type == PLACEHOLDER and op.results[0].splits)
        return self.processes.size if any(op.config.used_axes for op in placeholders) else sys.maxsize

    @property
    def optimizer(self) -> StepOptimizer:
        """The optimizer of the training step, or the first that it applies."""
        return self.optimizers[TRAIN]

    @cached_property
    def optimizers(self) -> dict[str, StepOptimizer]:
        """The optimizers of the training step, by the name of the step that applies each first."""
        names = [step.name for step in self.runs.planned.captured.graph.train_steps.values() if not step.of]
        optimizers = {name: self.execution.engine.optimizers[name] for name in names}
        return {name: optimizer for name, optimizer in optimizers.items() if isinstance(optimizer.running[0], RunningKeras)}

    # Steps

    @caught_up
    @everywhere
    def train(self, batch: Batch) -> Any:
        """Run one training step and return its program's results."""
        run = self._current(self.runs.of(TRAIN, batch))  # whose capture reads variables
        self.changing(self.trained)
        return run(batch.leaves, batch.is_share)

    @caught_up
    def step(self, run: Run, leaves: Sequence[Any]) -> Any:
        """Run a program of a training step and return its results."""
        self.changing(self.trained)
        return self._current(run)(leaves, is_share=False)

    @caught_up
    @everywhere
    def evaluate(self, batch: Batch) -> Any:
        """Evaluate a batch, which updates the metrics, and return the program's results."""
        run = self._current(self.runs.of(EVALUATE, batch))
        self.changing(run.updated)
        return run(batch.leaves, batch.is_share)

    @caught_up
    @everywhere
    def predict(self, batch: Batch) -> Any:
        """Return the model's global results for a batch, in the model's structure."""
        run = self._current(self.runs.of(PREDICT, batch))
        self.changing(run.updated)
        return run(batch.inputs, batch.is_share)

    @caught_up
    @everywhere
    def set_rate(self, value: Any) -> None:
        """Set the learning rate of the next steps."""
        self.optimizer.learning_rate = value
        self.changing({key for key in self.trained if key.endswith("/learning_rate")})

    @caught_up
    @everywhere
    def update_without_data(self) -> None:
        """Have the optimizers do what they do without a batch."""
        self.changing(self.trained)
        for step in self.runs.planned.captured.graph.train_steps.values():
            optimizer = self.optimizers[step.of or step.name]
            for running in optimizer.running:
                assert isinstance(running, RunningKeras)
                if running.is_always_applied:
                    running.update_without_data(self.value)

    @caught_up
    @everywhere
    def finish_training(self) -> None:
        """Run the optimizer's work at the end of training: moving averages may replace the parameters."""
        self.changing(self.trained)
        for optimizer in self.optimizers.values():
            optimizer.finish()

    def _current(self, run: Run) -> Run:
        """Return a program, which reads the optimizers as they are now."""
        if len(self.runs.executions) != self._n_noticed:
            self._notice()
        for key, variable in self._shown.items():
            self.state[key].assign(variable.numpy())
        return run

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
            entries = {entry.key: entry for execution in executions[1:] for entry in execution.engine.state()}
            self._all_state = len(executions), {**entries, **self.planned_state}
        return self._all_state[1]

    def key_of(self, variable: Any) -> str | None:
        """Return the key of one of the user's variables; None if no program that there is uses it."""
        name = self.runs.names.of(variable)
        return name if name in self.state else None

    @cached_property
    def trained(self) -> frozenset[str]:
        """The keys of the variables that a training step changes, those of optimizers included."""
        graph = self.runs.planned.captured.graph
        steps = [name for step in graph.train_steps.values() for name in step.variables]
        optimizer_keys = [key for key, entry in self.planned_state.items() if entry.step is not None]
        return frozenset([*steps, *optimizer_keys, *self.runs.planned.updated])

    def values(self, keys: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        """Yield each variable's key and global value, on every rank; while rank 0 leads, only there."""
        if not self.follows:
            self.catch_up()
        for key in keys:
            yield key, self.value(key)

    def value(self, key: str) -> np.ndarray:
        """Return the global value of a variable's shards, on every rank; while rank 0 leads, only there."""
        entry = self.state[key]
        value = entry.variables[0].numpy() if entry.is_whole_on(self.processes.size) else self._gather(key, not self.leads)
        assert value is not None
        return value

    # Copies

    def _notice(self) -> None:
        """Notice the variables of programs that were made, which have begun with the variables' own values."""
        self._n_noticed = len(self.runs.executions)
        copies = copies_on_ranks(self.runs.planned.captured, self.optimizers)
        for variable, name in self.runs.names.all:
            if name in self.state and id(variable) in copies:
                self._shown[name] = copies[id(variable)]
            elif name in self.state and name not in self.lives:
                self.hold(name, Live.of(variable))
        for live in self.lives.values():
            live.forget_access()  # the capture's, which assigned nothing; a step may change the values next

    def hold(self, key: str, live: Live) -> None:
        """Note which variable has shards of this key here."""
        self.lives[key] = live
        live.holders[self] = key

    def hold_optimizers(self, optimizers: Mapping[str, Any]) -> None:
        """Have the ranks hold the state of the user's optimizers, by the training step that applies each first."""
        captured = self.runs.planned.captured
        for step, optimizer in optimizers.items():
            names = captured.graph.train_steps[step].variables
            variables = {name: captured.capture.variables[name] for name in names}
            hold_optimizer(self, step, optimizer, variables)
        self.catch_up()

    def export(self) -> None:
        """Bring the own memory of all the user's variables up to date; all ranks call it together."""
        for live in self.lives.values():
            if live.variable is not None:
                live.access()

    def changing(self, keys: Set[str]) -> None:
        """Note that the shards of these variables become the newest copy."""
        for key in keys - self.changed:
            live = self.lives.get(key)
            if live is not None and self in live.holders:
                live.changes_in(self)
        self.changed |= keys

    def catch_up(self) -> None:
        """Give the shards the newest values: what the user's code assigned, and what other trainers have trained."""
        settle(self if self.leads else None)
        self._catch_up_with_settings()
        if len(self.runs.executions) != self._n_noticed:
            self._notice()
        if not self.outdated:
            return
        for key in sorted(key for key, is_assigned in self.outdated.items() if not is_assigned):  # alike on all ranks
            value = self.lives[key].value()
            if value is not None:
                self._renew(key, value)
        if self.outdated:
            self.assign_same(lambda: {key: self.lives[key].own().numpy() for key in self.outdated})

    def settle_for_all(self) -> None:
        """While rank 0 leads, send all ranks what the user's code has changed."""
        settle(self)
        self._catch_up_with_settings()

    def _catch_up_with_settings(self) -> None:
        """Take over the attributes that the user's code has set on optimizers."""
        for step, optimizer in self.optimizers.items() if hasattr(self, "runs") else ():  # else it waits for the first batch
            settings = optimizer.new_settings()
            if settings:
                subject = f"attributes of the optimizer ({running_line()})"
                texts = {name: as_text(value) for name, value in settings.items()}
                if not self.leads and self.processes.first_that_differs(texts, subject) is not None:
                    raise InputError(f"ranks set different {subject}: {', '.join(settings)}; set the same on all ranks")
                self._take_over(step, settings)

    @everywhere
    def _take_over(self, step: str, settings: Mapping[str, Any]) -> None:
        """Have the steps computed with other attributes of an optimizer. They are built again, as at first."""
        self.optimizers[step].take_over(settings)
        for execution in self.runs.executions:
            execution.engine.rebuild_steps()

    @everywhere
    def _renew(self, key: str, value: np.ndarray) -> None:
        """Assign the newest value to a variable's shards."""
        self.outdated.pop(key, None)
        self.state[key].assign(value)
        self.lives[key].note_copy()

    @everywhere
    def _gather(self, key: str, is_to_all: bool) -> np.ndarray | None:
        entry = self.state[key]
        message = key, entry.own_shards()
        messages = self.processes.gather(message) if is_to_all else self.processes.collect(message, 0)
        if messages is None:
            return None
        for rank, (read, _) in enumerate(messages):
            if read != messages[0][0]:
                raise InputError(
                    f"rank 0 reads '{messages[0][0]}' where rank {rank} reads '{read}': shards are gathered from all ranks, "
                    "so that every rank must read the same, in the same order"
                )
        return entry.joined(shards for _, shards in messages)

    @everywhere
    def assign(self, key: str, value: np.ndarray) -> None:
        """Assign a global value, the same on all ranks, to a variable; raise InputError if its shape is another."""
        entry = self.state[key]
        if np.shape(value) != tuple(entry.shape):
            raise InputError(
                f"variable '{key}' has shape {list(entry.shape)}, and can't be given {list(np.shape(value))}; give an array "
                "of the variable's whole shape"
            )
        self.outdated.pop(key, None)
        if key in self.lives:
            self.lives[key].forget_access()
        self.changing({key})
        entry.assign(value)

    def assign_same(self, checked_values: Callable[[], Mapping[str, np.ndarray]]) -> None:
        """Assign global values to variables, once they are found valid and equal on all ranks.

        Args:
            checked_values: returns the values by key, or raises InputError if one is invalid.

        Raises:
            InputError: a value is invalid or differs between ranks. The message is the same on all ranks, and no value has
                changed on any.
        """
        values, refusal = {}, None
        try:
            values = dict(checked_values())
        except InputError as error:
            refusal = error
        if self.leads or self.processes.size == 1:
            if refusal is not None:
                raise refusal
        else:
            message = None if refusal is None else str(refusal)
            content = message, {key: whole_digest(value) for key, value in values.items()}
            check_same(self.processes.gather(content, "values that were assigned"))
        for key, value in values.items():
            self.assign(key, value)

    # Checkpoints

    @property
    def kept(self) -> list[StateEntry]:
        """The entries of the variables that a checkpoint saves: all but the metrics of the running epoch."""
        return [entry for key, entry in self.planned_state.items() if key not in self.passing and key not in self._shown]

    @caught_up
    @everywhere
    def save(self, path: str, content: Mapping[str, Any], max_to_keep: int | None) -> None:
        """Save a checkpoint in which each rank writes its shards, with JSON content beside them."""
        with own_values():
            objects = self.objects() if self.rank == 0 else None
            save(path, self.kept, self.processes, content, objects=objects, max_to_keep=max_to_keep)

    @caught_up
    @everywhere
    def restore(self, path: str) -> Mapping[str, Any]:
        """Assign a checkpoint's values to all variables. Return the JSON content that was saved beside them."""
        with own_values():
            content = restore(path, self.kept, self.processes, self.objects()).content
        self.changing({entry.key for entry in self.kept})
        return content
