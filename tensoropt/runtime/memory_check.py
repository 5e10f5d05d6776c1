"""Compute the bytes of a model's state, and check that a process can get the memory that a plan needs.

The check comes before TensorFlow allocates the memory, since it may crash if there is too little.
"""

from __future__ import annotations

import numpy as np

from ..common.errors import OutOfMemoryError
from ..common.memory_units import memory_text
from ..costs.resharding_costs import shard_bytes
from ..profiling.available_memory import available_memory_bytes
from ..profiling.tensorflow_engine import TensorFlowEngine
from ..sharding.strategy import StrategyView
from .gpus import are_shared, computes_on_gpu
from .plan_memory import PlanMemory


def check_available_memory(n_bytes: int, local_ranks: int, memory: PlanMemory) -> None:
    """Check that this process can get the memory that a plan needs, before any of it is allocated.

    The bytes are allocated briefly, without being written to, which fails at a limit of the process. The free memory of the
    container and the machine is read. On a GPU its memory is the limit.

    Args:
        local_ranks: the number of ranks that share this machine's memory.
        memory: what is known of the plan and of those that need less.

    Raises:
        OutOfMemoryError: there is too little; the message is the same on every rank.
    """
    try:
        if computes_on_gpu():
            device = TensorFlowEngine().device_memory_bytes() or 0
            is_enough = n_bytes <= device // (local_ranks if are_shared() else 1)
        else:
            np.empty(n_bytes, np.uint8)
            is_enough = n_bytes <= available_memory_bytes(local_ranks)
    except MemoryError:
        is_enough = False
    if not is_enough:
        raise OutOfMemoryError(
            memory.sentence(f"the plan needs {memory_text(n_bytes)} of this process, which is more than it can get")
        )


def state_bytes(view: StrategyView) -> int:
    """Return the bytes of the variables and their slots on the device with the largest shards."""
    total = 0
    for op in view.graph.variables:
        shard = shard_bytes(op.result, view.layout(op.result))
        updates = view.graph.updates.get(op.name, ())
        total += shard + sum(update.slots * (op.result.mem_bytes if update.is_global else shard) for update in updates)
    return total
