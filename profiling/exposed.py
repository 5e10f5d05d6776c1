"""Measure how much of a collective's time overlaps with compute, where nothing waits for the collective's result.

Where a device computes on while it communicates, a step takes less than the sum of both. How much less depends on cores
and links: a rank with one core that spins in MPI computes nothing meanwhile; one that sleeps while a link is busy
computes, except for the time in which the system sends and receives. So the overlap is measured as steps have it, in
TensorFlow's own threads, with four functions: products of matrices alone, an all-reduce alone, both together, and
neither. The *exposed share* is the time that the all-reduce adds to the products, over the time that it adds to the
empty function.
"""

from __future__ import annotations

from collections.abc import Callable

from .compute import Action, Call, time_s
from .tensorflow_engine import TensorFlowEngine

SIZES = (1 << 22, 1 << 21, 1 << 20, 1 << 19)
"""Bytes of the all-reduce; the largest that the budget allows is taken."""
FEWEST, MOST = 3, 9
"""The fewest and the most rounds of measurement."""
LONGER = 1.5
"""The time of the products over that of the all-reduce. Above 1, so that the part that can overlap does so entirely."""
# The time of a round over that of the all-reduce: the all-reduce alone, the products alone, and both.
_ROUND = 1 + LONGER + (1 + LONGER)
NOTHING = 0.8
"""A larger share counts as 1: it is the noise of a device that computes nothing meanwhile."""


def exposed_share(
    engine: TensorFlowEngine,
    all_reduce: Callable[[int], Action | Call],
    seconds_of: Callable[[int], float],
    product_s: float,
    largest: Callable[[float], float],
    budget_s: float,
) -> float:
    """Return the exposed share, in (0, 1]; 1 where nothing overlaps. Every rank must call it, and gets the same.

    Args:
        all_reduce: returns an all-reduce of so many bytes.
        seconds_of: returns about how long that takes.
        product_s: the time of one of the engine's products in float32.
        largest: returns the largest of the ranks' numbers; a barrier too.
        budget_s: about how long it may take.
    """
    fits = [size for size in SIZES if FEWEST * _ROUND * seconds_of(size) <= budget_s]
    size = (fits or SIZES[-1:])[0]
    alone_s = seconds_of(size)
    n_products = max(1, round(LONGER * alone_s / product_s))
    call = all_reduce(size)
    actions = [engine.with_products(*pair) for pair in ((None, 0), (call, 0), (None, n_products), (call, n_products))]
    times_s: list[list[float]] = [[] for _ in actions]
    for number in range(1 + max(FEWEST, min(MOST, int(budget_s / (_ROUND * alone_s))))):
        for action, times in zip(actions, times_s, strict=True):
            largest(0.0)
            taken_s = largest(time_s(action))
            if number:  # an engine's first runs prepare
                times.append(taken_s)
    nothing_s, collective_s, products_s, both_s = (sorted(times)[len(times) // 2] for times in times_s)
    if collective_s <= nothing_s:
        return 1.0
    share = (both_s - products_s) / (collective_s - nothing_s)
    return 1.0 if share > NOTHING else max(share, 0.01)
