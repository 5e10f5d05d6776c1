"""Run paths by callbacks: with real collectives for one rank, or with a simulation of all ranks in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ...common.process.watchdog import ChainState
from ...reschedule.communicator import Communicator
from ...reschedule.layout import Shape
from ...reschedule.merging import with_all_reduces_of_pairs
from ...reschedule.mesh import Mesh
from ...reschedule.path import Path
from ...reschedule.rank_steps import RankPath
from ...reschedule.simulate import simulate, simulate_all_reduce
from ...reschedule.summing import Array
from .path_callbacks import Callbacks, Runner


class _Unwatched:
    """A backend whose callbacks record by themselves which collectives a rank is in."""

    def watched(self, log: Sequence[object]) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return nullcontext()

    def empty(self, shape: Shape, dtype: npt.DTypeLike) -> Array:
        """Return an uninitialised array."""
        return np.empty(shape, dtype)


@dataclass(frozen=True)
class EmulatedBackend(_Unwatched):
    """A backend with all ranks in one graph, whose collectives are the NumPy simulation."""

    mesh: Mesh

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(range(self.mesh.n_devices))

    def emitter(self) -> Callbacks:
        return Callbacks(self)

    def runner(self, path: Path, text: str, reduction: str = "sum") -> Runner:
        """Return a function that simulates a path, from the shards of all ranks before it to those after it."""
        if reduction == "sum":
            return lambda *shards: simulate(path, shards)
        (step,) = path.steps
        return lambda *shards: simulate_all_reduce(shards, self.mesh, step.axes, reduction)

    def together(self, paths: Sequence[Path], text: str) -> Runner:
        """Return a function that simulates several paths; shards and results are path by path."""
        n_ranks = self.mesh.n_devices

        def run(*shards: np.ndarray) -> list[np.ndarray]:
            groups = (shards[i * n_ranks : (i + 1) * n_ranks] for i in range(len(paths)))
            return [total for path, group in zip(paths, groups, strict=True) for total in simulate(path, group)]

        return run


@dataclass(frozen=True)
class CommunicatingBackend(_Unwatched):
    """A backend with one rank, this process, whose collectives go through a communicator.

    Attributes:
        waiting: records which collectives this rank is in.
        overlappable: runs the paths that only updates wait for, through another communicator and in a chain of its own;
            None for one chain.
        is_over_link: whether ranks are on several machines. A reduce-scatter and all-gather between two members then run as
            one all-reduce (:mod:`...reschedule.merging`).
    """

    mesh: Mesh
    rank: int
    communicator: Communicator
    waiting: ChainState = field(default_factory=ChainState)
    overlappable: CommunicatingBackend | None = None
    is_over_link: bool = False

    @property
    def ranks(self) -> tuple[int, ...]:
        return (self.rank,)

    def emitter(self) -> Callbacks:
        return Callbacks(self, self.overlappable)

    def empty(self, shape: Shape, dtype: npt.DTypeLike) -> Array:
        """Return an uninitialised array that TensorFlow takes over without a copy."""
        return self.communicator.empty(shape, dtype)

    def runner(self, path: Path, text: str, reduction: str = "sum") -> Runner:
        """Return a function that runs a path, from this rank's shard before it to the shard after it."""
        if reduction == "sum":
            rank_path = RankPath.of(with_all_reduces_of_pairs(path) if self.is_over_link else path, self.rank)
            return self._announced(text, lambda shard: [rank_path.run(shard, self.communicator)])
        (step,) = path.steps
        return self._announced(
            text, lambda shard: [self.communicator.all_reduce(step.group_axes, np.ascontiguousarray(shard), reduction)]
        )

    def together(self, paths: Sequence[Path], text: str) -> Runner:
        """Return a function that sums several arrays in one all-reduce, over the axes that all paths share."""
        (step,) = paths[0].steps

        def run(*shards: np.ndarray) -> list[np.ndarray]:
            ends = np.cumsum([shard.size for shard in shards])
            bucket = self.communicator.scratch("bucket", int(ends[-1]), shards[0].dtype)
            np.concatenate([shard.reshape(-1) for shard in shards], out=bucket)
            sums = np.split(self.communicator.all_reduce(step.group_axes, bucket), ends[:-1])
            return [part.reshape(shard.shape) for part, shard in zip(sums, shards, strict=True)]

        return self._announced(text, run)

    def _announced(self, text: str, run: Runner) -> Runner:
        """Return ``run``, wrapped so that ``waiting`` records that this rank is in collectives while it runs."""
        waiting = self.waiting

        def announced(*shards: np.ndarray) -> list[np.ndarray]:
            waiting.begin(text)
            try:
                return run(*shards)
            finally:
                waiting.end()

        return announced


@dataclass(frozen=True)
class TimedBackend(CommunicatingBackend):
    """A communicating backend that records how long each path takes, copies before and after its collectives included.

    Attributes:
        seconds: for each path run since the last :meth:`take`, its duration.
        clock: returns the time in seconds.
    """

    seconds: list[float] = field(default_factory=list)
    clock: Callable[[], float] = time.perf_counter

    def take(self) -> float:
        """Return the sum of the recorded seconds, and forget them."""
        total = sum(self.seconds)
        self.seconds.clear()
        return total

    def _announced(self, text: str, run: Runner) -> Runner:
        """Return ``run``, wrapped so that its duration is recorded as well."""
        announced = super()._announced(text, run)

        def timed(*shards: np.ndarray) -> list[np.ndarray]:
            start = self.clock()
            results = announced(*shards)
            self.seconds.append(self.clock() - start)
            return results

        return timed
