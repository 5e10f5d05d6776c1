"""Numbers on which all ranks that measure together agree.

All ranks must make the same calls in the same order, so nothing that steers a measurement may come from a rank's own clock:
what is measured, how often, and when to stop follow from times that were first agreed on, the largest over all ranks. An
agreement is a barrier too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..reschedule.communicator import Communicator
from ..reschedule.layout import Axes
from ..reschedule.mesh import Mesh
from .compute import Action, Call, time_s

REPEATS = (3, 15)
"""Fewest and most."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where this process is among the ranks that measure together.

    Attributes:
        communicator: of all ranks, prepared for :func:`.collective_tables.device_partitions`; None for one alone.
        rank: this one's number in the mesh.
        local_ranks: how many ranks share this machine's memory.
        broadcast: gives rank 0's value to every rank.
        collectives: whose the collectives are that are measured.
        emitted: of a kind over axes, of so many bytes, how many numbers a rank has for it, and what adds it to the graph
            that is being built; None where collectives are calls from the graph into Python.
    """

    communicator: Communicator | None = None
    rank: int = 0
    local_ranks: int = 1
    broadcast: Callable[[Any], Any] = lambda value: value
    collectives: str = "mpi"
    emitted: Callable[[str, Axes, int], Call] | None = None


class Ranks:
    """The ranks of a mesh; a communicator of None stands for one alone.

    Attributes:
        unequal: the most by which the slowest rank took longer than the fastest for the same action.
    """

    def __init__(self, communicator: Communicator | None, mesh: Mesh) -> None:
        self._communicator = communicator
        self._axes = mesh.axes
        self.count = mesh.n_devices
        self.unequal = 1.0

    def largest(self, value: float) -> float:
        if self._communicator is None or not self._axes:
            return value
        return float(self._communicator.all_reduce(self._axes, np.array([value], np.float64), "max")[0])

    def smallest(self, value: float) -> float:
        return -self.largest(-value)

    def without_waiting(self, axes: Axes, seconds: np.ndarray) -> np.ndarray:
        """What collectives took, from what they took this rank: of each group the member that came last didn't wait for the
        others, and of the groups, which work at the same time, the slowest counts."""
        if self._communicator is None:
            return seconds
        return self.slowest(-self._communicator.all_reduce(axes, -seconds.reshape(-1), "max").reshape(seconds.shape))

    def slowest(self, seconds: np.ndarray) -> np.ndarray:
        """Of each the slowest rank's."""
        if self._communicator is None:
            return seconds
        found: np.ndarray = self._communicator.all_reduce(self._axes, seconds.reshape(-1), "max")
        return found.reshape(seconds.shape)

    def after_s(self, before: Action, action: Action) -> float:
        """What an action takes this rank after another; all start together, by a collective that fetches the code again."""
        before()
        self.largest(0.0)
        return time_s(action)

    def repeated(self, budget_s: float, before: Action, action: Action) -> float:
        """The slowest rank's lower quartile of an action that follows another; both together may take the budget."""
        action()
        once_s = self.largest(time_s(lambda: self.after_s(before, action)))
        return self.largest(lower_quartile([self.after_s(before, action) for _ in range(repeats(budget_s, once_s))]))

    def typical_s(self, action: Action, budget_s: float) -> float:
        """The slowest rank's lower quartile over repeats of ``action``, which all ranks start together."""
        action()
        self.largest(0.0)
        n_repeats = repeats(budget_s, self.largest(time_s(action)))
        mine_s = lower_quartile([time_s(action) for _ in range(n_repeats)])
        slowest_s = self.largest(mine_s)
        self.unequal = max(self.unequal, slowest_s / self.smallest(mine_s))
        return slowest_s


def lower_quartile(times: Sequence[float]) -> float:
    """The time that a quarter of the repeats do not exceed; of three, the least."""
    return sorted(times)[len(times) // 4]


def repeats(budget_s: float, once_s: float, bounds: tuple[int, int] = REPEATS) -> int:
    """How many repeats a budget allows; no fewer and no more than the bounds."""
    fewest, most = bounds
    return max(fewest, min(most, int(budget_s / once_s)))
