"""Backends whose collectives are callbacks: one rank with real collectives, and all ranks emulated in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np

from ...common.watchdog import Waiting
from ...reschedule.communicator import Communicator
from ...reschedule.execute import RankPath
from ...reschedule.merging import with_sums_of_two_whole
from ...reschedule.mesh import Mesh
from ...reschedule.path import Path
from ...reschedule.simulate import simulate, simulate_all_reduce
from .callbacks import Callbacks, Runner


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

    def together(self, paths: Sequence[Path], what: str) -> Runner:
        n_ranks = self.mesh.n_devices

        def run(*pieces: np.ndarray) -> list[np.ndarray]:
            by_path = (pieces[i * n_ranks : (i + 1) * n_ranks] for i in range(len(paths)))
            return [summed for path, of_path in zip(paths, by_path, strict=True) for summed in simulate(path, of_path)]

        return run


@dataclass(frozen=True)
class CommunicatingBackend(_Unwatched):
    """This process is one rank; collectives go through a communicator.

    Attributes:
        waiting: is told in which collectives this rank is.
        trailing: has what only updates wait for go through another communicator, in a chain of its own.
        is_over_link: whether ranks are on several machines; sums of two are made whole then (:mod:`...reschedule.merging`).
    """

    mesh: Mesh
    rank: int
    communicator: Communicator
    waiting: Waiting = field(default_factory=Waiting)
    trailing: CommunicatingBackend | None = None
    is_over_link: bool = False

    @property
    def ranks(self) -> tuple[int, ...]:
        return (self.rank,)

    def carrier(self) -> Callbacks:
        return Callbacks(self, self.trailing)

    def runner(self, path: Path, what: str) -> Runner:
        seen = RankPath.of(with_sums_of_two_whole(path) if self.is_over_link else path, self.rank)
        return self._told(what, lambda piece: [seen.run(piece, self.communicator)])

    def maximum(self, path: Path, what: str) -> Runner:
        (step,) = path.steps
        return self._told(
            what, lambda piece: [self.communicator.all_reduce(step.group_axes, np.ascontiguousarray(piece), "max")]
        )

    def together(self, paths: Sequence[Path], what: str) -> Runner:
        (step,) = paths[0].steps

        def run(*pieces: np.ndarray) -> list[np.ndarray]:
            ends = np.cumsum([piece.size for piece in pieces])
            joined = self.communicator.scratch("bucket", int(ends[-1]), pieces[0].dtype)
            np.concatenate([piece.reshape(-1) for piece in pieces], out=joined)
            summed = np.split(self.communicator.all_reduce(step.group_axes, joined), ends[:-1])
            return [part.reshape(piece.shape) for part, piece in zip(summed, pieces, strict=True)]

        return self._told(what, run)

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

    def together(self, paths: Sequence[Path], what: str) -> Runner:
        return self._timed(super().together(paths, what))

    def _timed(self, run: Runner) -> Runner:
        def timed(*pieces: np.ndarray) -> list[np.ndarray]:
            started = self.clock()
            results = run(*pieces)
            self.seconds.append(self.clock() - started)
            return results

        return timed
