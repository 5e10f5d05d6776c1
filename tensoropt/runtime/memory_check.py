"""Check that a process can get the memory that a plan needs, and say that memory ran out, and which plan would fit.

The check comes before TensorFlow allocates the memory, since it may crash if there is too little.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..common.errors import OutOfMemoryError
from ..common.memory_units import default_limit, memory_text
from ..costs.resharding_costs import shard_bytes
from ..plan.plan import Plan
from ..profiling.available_memory import available_memory_bytes
from ..profiling.tensorflow_engine import TensorFlowEngine
from ..sharding.strategy import StrategyView
from .gpus import are_shared, computes_on_gpu

LESS = 0.8
"""The share of its prediction that is left to a plan which ran out of memory although it was predicted to fit."""


@dataclass(frozen=True, slots=True)
class PlanMemory:
    """The memory per device that a plan was predicted to need, and that of its frontier's other plans.

    Attributes:
        plan_bytes: the predicted peak per device.
        time_us: the predicted time of a step.
        others: the predicted peak and time of the frontier's plans with a smaller peak; none where it isn't known.
    """

    plan_bytes: int
    time_us: float
    others: tuple[tuple[int, float], ...] = ()

    @classmethod
    def of(cls, plan: Plan, from_rank_0: Callable[[object], object] = lambda value: value) -> PlanMemory:
        """Return what is known of a plan: on all ranks what rank 0 knows, which alone has the frontier."""
        points = [] if plan.frontier is None else zip(plan.frontier.peaks.tolist(), plan.frontier.points, strict=True)
        smaller_plans = tuple((peak, point.time_us) for peak, point in points if peak < plan.needed_bytes)
        memory = from_rank_0(cls(plan.needed_bytes, plan.time_us, smaller_plans))
        assert isinstance(memory, cls)
        return memory

    def sentence(self, what: str, device_bytes: int | None = None) -> str:
        """Return the sentence that a user reads.

        Args:
            what: what couldn't be had, such as TensorFlow's "OOM when allocating tensor with shape[...]".
            device_bytes: the memory of a GPU; by default this process's, None on a CPU, whose free memory changes.
        """
        if device_bytes is None and computes_on_gpu():
            device_bytes = TensorFlowEngine().device_memory_bytes()
        limit = round(LESS * self.plan_bytes)
        if device_bytes is not None:
            limit = min(limit, default_limit(device_bytes))
        limit_text = "" if device_bytes is None else f", of {memory_text(device_bytes)} that its GPU has"
        return (
            f"out of memory: {what.rstrip('.')}; the plan was predicted to need {memory_text(self.plan_bytes)} per "
            f"device{limit_text}; {self._advice(limit)}"
        )

    def _advice(self, limit: int) -> str:
        fitting = [(time_us, peak) for peak, time_us in self.others if peak <= limit]
        if fitting:
            time_us, peak = min(fitting)
            return (
                f"a plan that needs {memory_text(peak)} is predicted to take {time_us / self.time_us:.2f} times as long: "
                f"ask for it by memory='{memory_text(peak + peak // 200)}'"
            )
        return (
            f"find a plan that needs at most {memory_text(limit)} per device, with find_strategy(memory=...), on more "
            "devices, or with fewer samples at once"
        )


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
