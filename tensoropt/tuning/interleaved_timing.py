"""Time training steps of several plans, interleaved, on synthetic batches: which plan is the fastest on this machine.

A machine's speed drifts by more than plans differ. So the plans' engines exist side by side, and each runs a few steps
at a time. The first of these finds the caches as another plan left them, and doesn't count.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence

import numpy as np

from ..plan.plan import Plan
from ..runtime.engine import Engine
from ..runtime.execution import execute
from ..runtime.measuring.synthetic_batch import WARM_STEPS, synthetic_step
from ..runtime.ranks import Processes
from ..sharding.model import Model

FirstValue = Callable[[str], np.ndarray]
COUNTED = 2
"""The steps of a plan that count in each turn, after one that doesn't."""


def steps_of(n_turns: int) -> int:
    """Return how many steps each plan runs, those that don't count included."""
    return WARM_STEPS + n_turns * (1 + COUNTED)


def interleaved_seconds(
    plans: Sequence[Plan],
    model: Model,
    first_values: Callable[[], FirstValue],
    processes: Processes,
    collectives: str,
    n_turns: int,
    progress: Callable[[int, int], None] | None = None,
) -> np.ndarray:
    """Return the seconds of each counted step on the slowest rank, [n_turns * COUNTED, plans]; every rank must call it.

    Args:
        first_values: returns, for each plan, the function of its variables' first values.
        progress: is called with (done, total) turns.

    Raises:
        InputError: a plan is for another model, or not for as many devices as there are ranks.
        OutOfMemoryError: there isn't the memory for all plans at once.
    """
    fetch, feeds = synthetic_step(model.graph)
    engines: list[Engine] = []
    for plan in plans:
        execution = execute(plan, model, first_values(), processes, collectives, values_are_exchanged=True)
        engines.append(execution.engine)
        for _ in range(WARM_STEPS):
            engines[-1].run(fetch, feeds)
    seconds = np.empty((n_turns * COUNTED, len(plans)))
    for turn in range(n_turns):
        for number, engine in enumerate(engines):
            engine.run(fetch, feeds)
            for step in range(COUNTED):
                processes.barrier()
                start = time.perf_counter()
                engine.run(fetch, feeds)
                seconds[turn * COUNTED + step, number] = processes.gather_max(time.perf_counter() - start)
        if progress is not None:
            progress(turn + 1, n_turns)
    del engines, engine, execution
    gc.collect()
    return seconds
