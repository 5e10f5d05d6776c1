"""The memory that :class:`MpiCommunicator` keeps from one collective to the next: by name, the most that any has taken."""

from __future__ import annotations

import math

from ..reschedule.execute import RankStep

GATHER_AND_ADD_BYTES = 1 << 18
"""An all-reduce that would receive at most so many bytes by an all-gather does; one message less pays up to about here."""


def workspace_bytes(step: RankStep, item_bytes: int) -> dict[str, int]:
    """What a step takes of each, on the rank that sees it so."""
    local, result = (math.prod(shape) * item_bytes for shape in (step.local_shape, step.result_shape))
    n_members = len(step.recv_shapes)
    if step.kind == "all_reduce":
        if n_members > 2 and local * n_members <= GATHER_AND_ADD_BYTES:
            return {"reduce": local * n_members}
        chunk = -(-math.prod(step.local_shape) // n_members)
        return {"reduce": chunk * (n_members if n_members > 2 else 1) * item_bytes}
    found = {}
    if step.send_slices and not step.send_in_place:
        found["send"] = local
    if step.kind == "reduce_scatter":
        found["reduce"] = result * n_members
    elif n_members and not step.recv_in_place:
        found["receive"] = result
    return found
