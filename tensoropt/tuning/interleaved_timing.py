"""Plans that take training steps in turn on synthetic batches: which is the fastest here, whatever was predicted.

A machine's speed drifts by more than plans differ. So the plans' engines stand beside each other, and each takes a few steps
at a time: the first of them finds the caches as another plan left them, and doesn't count.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence

import numpy as np

from ..plan.plan import Plan
from ..runtime.engine import Engine
from ..runtime.execute import execute
from ..runtime.ranks import Processes
from ..runtime.synthetic_batch import WARM_STEPS, training_step
from ..sharding.model import Model

FirstValue = Callable[[str], np.ndarray]
COUNTED = 2
"""Of a plan's steps at a time, after one that doesn't count."""


def steps_of(n_turns: int) -> int:
    """How many steps each plan takes, those that don't count included."""
    return WARM_STEPS + n_turns * (1 + COUNTED)


def seconds_in_turn(
    plans: Sequence[Plan],
    model: Model,
    first_values: Callable[[], FirstValue],
    processes: Processes,
    collectives: str,
    n_turns: int,
    progress: Callable[[int, int], None] | None = None,
) -> np.ndarray:
    """Seconds of each counted step on the slowest rank, [n_turns * COUNTED, plans]; every rank must call it.

    Args:
        first_values: gives each plan what gives its variables' first values.
        progress: is told (done, total) of turns.

    Raises:
        InputError: a plan is for another model, or not for as many devices as there are ranks.
        OutOfMemoryError: there isn't the memory for all plans at once.
    """
    fetch, feeds = training_step(model.graph)
    engines: list[Engine] = []
    for plan in plans:
        engines.append(execute(plan, model, first_values(), processes, collectives).engine)
        for _ in range(WARM_STEPS):
            engines[-1].run(fetch, feeds)
    seconds = np.empty((n_turns * COUNTED, len(plans)))
    for turn in range(n_turns):
        for number, engine in enumerate(engines):
            engine.run(fetch, feeds)
            for step in range(COUNTED):
                processes.barrier()
                started = time.perf_counter()
                engine.run(fetch, feeds)
                seconds[turn * COUNTED + step, number] = processes.gather_max(time.perf_counter() - started)
        if progress is not None:
            progress(turn + 1, n_turns)
    del engines, engine
    gc.collect()
    return seconds
