"""Backends whose collectives are callbacks: one rank with real collectives, and all ranks emulated in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np

from ..reschedule.execute import Communicator, RankPath
from ..reschedule.mesh import Mesh
from ..reschedule.path import Path
from ..reschedule.simulate import simulate, simulate_all_reduce
from ..waiting import Waiting
from .carriers import Callbacks, Runner


class _Unwatched:
    """Of a backend whose callbacks tell by themselves in which collectives a rank is."""

    def watched(self, log: Sequence[object]) -> AbstractContextManager[None]:
        return nullcontext()


@dataclass(frozen=True)
class EmulatedBackend(_Unwatched):
    """All ranks in one graph; collectives are the NumPy simulation."""

    mesh: Mesh

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(range(self.mesh.n_devices))

    def carrier(self) -> Callbacks:
        return Callbacks(self)

    def runner(self, path: Path, what: str) -> Runner:
        return lambda *pieces: simulate(path, pieces)

    def maximum(self, path: Path, what: str) -> Runner:
        (step,) = path.steps
        return lambda *pieces: simulate_all_reduce(pieces, self.mesh, step.axes, "max")


@dataclass(frozen=True)
class CommunicatingBackend(_Unwatched):
    """This process is one rank; collectives go through a communicator.

    Attributes:
        waiting: is told in which collectives this rank is.
        trailing: has what only updates wait for go through another communicator, in a chain of its own.
    """

    mesh: Mesh
    rank: int
    communicator: Communicator
    waiting: Waiting = field(default_factory=Waiting)
    trailing: CommunicatingBackend | None = None

    @property
    def ranks(self) -> tuple[int, ...]:
        return (self.rank,)

    def carrier(self) -> Callbacks:
        return Callbacks(self, self.trailing)

    def runner(self, path: Path, what: str) -> Runner:
        seen = RankPath.of(path, self.rank)
        return self._told(what, lambda piece: [seen.run(piece, self.communicator)])

    def maximum(self, path: Path, what: str) -> Runner:
        (step,) = path.steps
        return self._told(
            what, lambda piece: [self.communicator.all_reduce(step.group_axes, np.ascontiguousarray(piece), "max")]
        )

    def _told(self, what: str, run: Runner) -> Runner:
        waiting = self.waiting

        def told(*pieces: np.ndarray) -> list[np.ndarray]:
            waiting.begin(what)
            try:
                return run(*pieces)
            finally:
                waiting.end()

        return told


@dataclass(frozen=True)
class TimedBackend(CommunicatingBackend):
    """Writes down how long each path took, with what it copies before and after its collectives.

    Attributes:
        seconds: of each path since they were last taken.
    """

    seconds: list[float] = field(default_factory=list)
    clock: Callable[[], float] = time.perf_counter

    def take(self) -> float:
        """The sum so far, which is forgotten."""
        total = sum(self.seconds)
        self.seconds.clear()
        return total

    def runner(self, path: Path, what: str) -> Runner:
        return self._timed(super().runner(path, what))

    def maximum(self, path: Path, what: str) -> Runner:
        return self._timed(super().maximum(path, what))

    def _timed(self, run: Runner) -> Runner:
        def timed(*pieces: np.ndarray) -> list[np.ndarray]:
            started = self.clock()
            results = run(*pieces)
            self.seconds.append(self.clock() - started)
            return results

        return timed
