"""Keep variables beside the models alike on the ranks and in the script: weights of a loss, counters, queues of samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from .programs import inner
from .trainer_ranks import TrainerRanks
from .watched import own_values


@dataclass
class UnwatchedVariables:
    """The variables that programs use and that are of no model and no metric of the trainer, so that nothing watches them.

    Each that a program changes has the ranks' value after a step. What the script assigns to one, the ranks have in the next
    step; rank 0's value counts, since callbacks run on rank 0 alone.

    Attributes:
        others: returns the variables that are of a model or a metric.
    """

    ranks: TrainerRanks
    others: Callable[[], Iterable[Any]]
    _seen: dict[str, np.ndarray] = field(default_factory=dict)
    _known: dict[str, tf.Variable] = field(default_factory=dict)
    _changing: frozenset[str] = frozenset()
    _n_programs: int = 0

    def __post_init__(self) -> None:
        self._notice()

    def push(self) -> None:
        """Give the ranks what the script has assigned. Every rank must call it."""
        if not self._known:
            return
        own = {key: variable.numpy() for key, variable in self._known.items()}
        assigned = {key: value for key, value in own.items() if not _are_same(value, self._seen[key])}
        if not self.ranks.leads:
            assigned = self.ranks.processes.broadcast(assigned, "what the script assigns to variables")
        for key, value in assigned.items():
            self.ranks.assign(key, value)
            self._set(key, value)

    def pull(self, all_of_them: bool = False) -> None:
        """Give the script's variables the values that the last step left, or those of a checkpoint for all of them."""
        self._notice()
        keys = self._known if all_of_them else [key for key in self._known if key in self._changing]
        for key, value in self.ranks.values(keys):
            self._set(key, value)

    def _notice(self) -> None:
        """Notice the variables of programs that were made, which have begun with the script's values."""
        executions = self.ranks.runs.executions
        if len(executions) == self._n_programs:
            return
        self._n_programs = len(executions)
        others = {id(inner(each)) for each in self.others()}
        found = {name: each for each, name in self.ranks.runs.names.all if id(each) not in others}
        self._known = {name: variable for name, variable in found.items() if name in self.ranks.state}
        for key, variable in self._known.items():
            self._seen.setdefault(key, np.array(variable.numpy()))
        operators = (op for each in executions for op in each.engine.graph.operators.values())
        self._changing = frozenset(op.updates for op in operators if op.updates is not None)

    def _set(self, key: str, value: np.ndarray) -> None:
        if not _are_same(value, self._seen[key]) or not _are_same(value, self._known[key].numpy()):
            with own_values():
                self._known[key].assign(value)
            self._seen[key] = np.array(value)


def _are_same(value: np.ndarray, other: np.ndarray) -> bool:
    if value.dtype == object:  # text
        return np.array_equal(value, other)
    return value.tobytes() == other.tobytes()
