"""What every plan of a model needs at least, and whether a process has the memory that one plan needs.

The latter is asked before TensorFlow asks, which may crash where it isn't there.
"""

from __future__ import annotations

import numpy as np

from ..common.errors import OutOfMemoryError
from ..common.memory_units import memory_text
from ..costs.operator_costs import piece_bytes
from ..profiling.memory import available_memory_bytes
from ..sharding.strategy import StrategyView


def check_room(n_bytes: int, local_ranks: int) -> None:
    """Hold what a plan needs of this process against what it can get, before anything of it is taken.

    It is taken for a moment, without being written to: limits of the process then say no. What the container and the machine
    have free is read.

    Args:
        local_ranks: that share this machine's memory.

    Raises:
        OutOfMemoryError: it isn't there; the message is the same on every rank.
    """
    try:
        np.empty(n_bytes, np.uint8)
        fits = n_bytes <= available_memory_bytes(local_ranks)
    except MemoryError:
        fits = False
    if not fits:
        raise OutOfMemoryError(
            f"out of memory: the plan needs {memory_text(n_bytes)} of this process, which is more than it can get; find a "
            "plan that needs less per device, with find_strategy(memory=...) or on more devices"
        )


def state_bytes(view: StrategyView) -> int:
    """The variables and their slots on the device with the largest pieces."""
    total = 0
    for op in view.graph.variables:
        piece = piece_bytes(op.result, view.layout(op.result))
        updates = view.graph.updates.get(op.name, ())
        total += piece + sum(each.slots * (op.result.mem_bytes if each.is_whole else piece) for each in updates)
    return total
