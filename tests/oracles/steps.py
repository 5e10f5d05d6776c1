"""All steps from a layout, one by one, the cheapest paths of them, and costs of steps that tell every mistake."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from tensoropt.reschedule.layout import Axes, Layout, Shape
from tensoropt.reschedule.mesh import Mesh
from tensoropt.reschedule.path import StepCosts, step_time_ns
from tensoropt.reschedule.steps import State, Step, make_step, moves

Cost = tuple[int, int, int]
"""Nanoseconds, collectives and steps of a path; the first that differ decide."""


def legal_steps(layout: Layout, shape: Shape) -> tuple[Step, ...]:
    """Return all steps from a layout to layouts that fit a tensor of ``shape``, in a fixed order."""
    return tuple(
        step
        for move in moves(len(layout.mesh.sizes), State.of(layout))
        if (step := make_step(layout, move)).target.fits(shape)
    )


def step_between(mesh: Mesh, source: str, target: str, shape: Shape) -> Step:
    steps = legal_steps(Layout.parse(mesh, source), shape)
    return next(step for step in steps if step.target == Layout.parse(mesh, target))


def cheapest_costs(
    layouts: Sequence[Layout], shape: Shape, itemsize: int, costs: StepCosts
) -> dict[tuple[Layout, Layout], Cost]:
    """Return the cost of the cheapest path over these layouts from each to each, by Floyd and Warshall."""
    number = {layout: n for n, layout in enumerate(layouts)}
    best = np.full([len(number)] * 2, 1 << 60)
    np.fill_diagonal(best, 0)
    for layout, start in number.items():
        for step in legal_steps(layout, shape):
            if step.target in number:
                time_ns = step_time_ns(step, shape, itemsize, costs)
                best[start, number[step.target]] = time_ns << 16 | step.communicates << 8 | 1
    for middle in range(len(number)):
        np.minimum(best, best[:, [middle]] + best[middle], out=best)
    pairs = zip(product(number, repeat=2), best.ravel().tolist(), strict=True)
    return {pair: (cost >> 16, cost >> 8 & 255, cost & 255) for pair, cost in pairs}


@dataclass(frozen=True)
class ScrambledCosts:
    """Numbers without rhyme or reason below ``limit``, which tell all axes apart; a small limit makes ties."""

    seed: int
    limit: int

    def time_ns(self, kind: str, mesh: Mesh, axes: Axes, n_bytes: int) -> int:
        assert axes == tuple(sorted(axes)) and axes, "a group's axes are asked for in mesh order"
        return zlib.crc32(f"{self.seed} {kind} {axes} {n_bytes}".encode()) % self.limit
