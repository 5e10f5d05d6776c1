"""The two backends: one rank with real collectives, and all ranks emulated in one process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..reschedule.execute import Communicator, RankPath
from ..reschedule.mesh import Mesh
from ..reschedule.path import Path
from ..reschedule.simulate import simulate, simulate_all_reduce

Runner = Callable[..., list[np.ndarray]]


@dataclass(frozen=True)
class EmulatedBackend:
    """All ranks in one graph; collectives are the NumPy simulation."""

    mesh: Mesh

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(range(self.mesh.n_devices))

    def runner(self, path: Path) -> Runner:
        return lambda *pieces: simulate(path, pieces)

    def maximum(self, path: Path) -> Runner:
        (step,) = path.steps
        return lambda *pieces: simulate_all_reduce(pieces, self.mesh, step.axes, "max")


@dataclass(frozen=True)
class CommunicatingBackend:
    """This process is one rank; collectives go through a communicator."""

    mesh: Mesh
    rank: int
    communicator: Communicator

    @property
    def ranks(self) -> tuple[int, ...]:
        return (self.rank,)

    def runner(self, path: Path) -> Runner:
        seen = RankPath.of(path, self.rank)
        return lambda piece: [seen.run(piece, self.communicator)]

    def maximum(self, path: Path) -> Runner:
        (step,) = path.steps
        return lambda piece: [self.communicator.all_reduce(step.group_axes, np.ascontiguousarray(piece), "max")]
