"""All steps from a layout, one by one, and costs of steps that tell every mistake."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from tensoropt.reschedule.layout import Axes, Layout, Shape
from tensoropt.reschedule.mesh import Mesh
from tensoropt.reschedule.steps import State, Step, make_step, moves


def legal_steps(layout: Layout, shape: Shape) -> tuple[Step, ...]:
    """Return all steps from a layout to layouts that fit a tensor of ``shape``, in a fixed order."""
    return tuple(
        step
        for move in moves(len(layout.mesh.sizes), State.of(layout))
        if (step := make_step(layout, move)).target.fits(shape)
    )


@dataclass(frozen=True)
class ScrambledCosts:
    """Numbers without rhyme or reason below ``limit``, which tell all axes apart; a small limit makes ties."""

    seed: int
    limit: int

    def time_ns(self, kind: str, mesh: Mesh, axes: Axes, n_bytes: int) -> int:
        assert axes == tuple(sorted(axes)) and axes, "a group's axes are asked for in mesh order"
        return zlib.crc32(f"{self.seed} {kind} {axes} {n_bytes}".encode()) % self.limit
