"""Make all ranks that measure together agree on numbers.

All ranks must make the same calls in the same order, so nothing that steers a measurement may come from a rank's own
clock: the quantities measured, the number of repeats, and the end follow from times that were first agreed on, the
largest over all ranks. An agreement is a barrier too.
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
"""The fewest and the most repeats."""


@dataclass(frozen=True, slots=True)
class MeasuringProcess:
    """This process among the ranks that measure together.

    Attributes:
        communicator: the one of all ranks, prepared for :func:`.collective_tables.device_partitions`; None for one rank
            alone.
        rank: this process's number in the mesh.
        local_ranks: how many ranks share this machine's memory.
        ranks_per_core: how many ranks share each core.
        broadcast: returns rank 0's value on every rank.
        collectives: the implementation of the measured collectives, ``mpi``, ``tensorflow`` or ``horovod``.
        is_by_nccl: whether TensorFlow's run by NCCL.
        emitted: returns, for a kind, axes and bytes, the length of a rank's input and the function that adds the
            collective to the graph that is being built; None where collectives are calls from the graph into Python.
    """

    communicator: Communicator | None = None
    rank: int = 0
    local_ranks: int = 1
    ranks_per_core: float = 1.0
    broadcast: Callable[[Any], Any] = lambda value: value
    collectives: str = "mpi"
    is_by_nccl: bool = False
    emitted: Callable[[str, Axes, int], Call] | None = None


class MeasuringRanks:
    """The ranks of a mesh; a communicator of None stands for one rank alone.

    Attributes:
        ranks_per_core: how many ranks share each core.
        unequal: the largest ratio, over actions, of the slowest rank's time to the fastest rank's.
    """

    def __init__(self, communicator: Communicator | None, mesh: Mesh, ranks_per_core: float = 1.0) -> None:
        self._communicator, self.ranks_per_core = communicator, ranks_per_core
        self._axes = mesh.axes
        self.count = mesh.n_devices
        self.unequal = 1.0

    def largest(self, value: float) -> float:
        """Return the largest of the ranks' values."""
        if self._communicator is None or not self._axes:
            return value
        return float(self._communicator.all_reduce(self._axes, np.array([value], np.float64), "max")[0])

    def smallest(self, value: float) -> float:
        """Return the smallest of the ranks' values."""
        return -self.largest(-value)

    def without_waiting(self, axes: Axes, seconds: np.ndarray) -> np.ndarray:
        """Return the times of collectives, without the time in which ranks wait for each other.

        ``seconds`` is how long the collectives took this rank. In each group the member that came last didn't wait, so
        the least time counts. Groups work at the same time, so the slowest group counts.
        """
        if self._communicator is None:
            return seconds
        return self.slowest(-self._communicator.all_reduce(axes, -seconds.reshape(-1), "max").reshape(seconds.shape))

    def slowest(self, seconds: np.ndarray) -> np.ndarray:
        """Return the slowest rank's value of each of ``seconds``."""
        if self._communicator is None:
            return seconds
        slowest: np.ndarray = self._communicator.all_reduce(self._axes, seconds.reshape(-1), "max")
        return slowest.reshape(seconds.shape)

    def after_s(self, before: Action, action: Action) -> float:
        """Return the seconds that ``action`` takes this rank after ``before``.

        All ranks start the action together, by a collective, which also brings its code into the caches again.
        """
        before()
        self.largest(0.0)
        return time_s(action, self.ranks_per_core)

    def repeated(self, budget_s: float, before: Action, action: Action) -> float:
        """Return the slowest rank's lower quartile of ``action``, each time after ``before``; both together may take the
        budget.
        """
        action()
        once_s = self.largest(time_s(lambda: self.after_s(before, action)))
        return self.largest(lower_quartile([self.after_s(before, action) for _ in range(repeats(budget_s, once_s))]))

    def typical_s(self, action: Action, budget_s: float) -> float:
        """Return the slowest rank's lower quartile over repeats of ``action``, which all ranks start together."""
        action()
        self.largest(0.0)
        n_repeats = repeats(budget_s, self.largest(time_s(action)))
        mine_s = lower_quartile([time_s(action, self.ranks_per_core) for _ in range(n_repeats)])
        slowest_s = self.largest(mine_s)
        self.unequal = max(self.unequal, slowest_s / self.smallest(mine_s))
        return slowest_s


def lower_quartile(times: Sequence[float]) -> float:
    """Return the time that a quarter of the repeats do not exceed; of three, the least."""
    return sorted(times)[len(times) // 4]


def repeats(budget_s: float, once_s: float, bounds: tuple[int, int] = REPEATS) -> int:
    """Return how many repeats a budget allows, within the bounds."""
    fewest, most = bounds
    return max(fewest, min(most, int(budget_s / once_s)))
