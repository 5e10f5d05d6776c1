"""All steps from a layout, one by one."""

from __future__ import annotations

from tensoropt.reschedule.layout import Layout, Shape
from tensoropt.reschedule.steps import State, Step, make_step, moves


def legal_steps(layout: Layout, shape: Shape) -> tuple[Step, ...]:
    """Return all steps from a layout to layouts that fit a tensor of ``shape``, in a fixed order."""
    return tuple(
        step
        for move in moves(len(layout.mesh.sizes), State.of(layout))
        if (step := make_step(layout, move)).target.fits(shape)
    )
