"""How much of a collective's time is lost to the compute beside it, where nobody waits for what the collective brings.

Where a device computes on while it communicates, a step takes less than the sum of both. How much less is a matter of cores
and links: a rank with one core that spins in MPI computes nothing meanwhile, one that naps while a link is busy computes,
but for what the system takes to send and to receive. So it is measured as steps have it, in TensorFlow's own threads:
products of matrices by themselves, an all-reduce by itself, both in one function, and a function of nothing. The *exposed
share* is what the all-reduce adds to the products, over what it adds to nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from .compute import Action, Call, Engine, time_s

SIZES = (1 << 22, 1 << 21, 1 << 20, 1 << 19)
"""Bytes of the all-reduce; the largest that the budget allows."""
FEWEST, MOST = 3, 9
"""Rounds."""
LONGER = 1.5
"""The products take so many times as long as the all-reduce: what is hidden of it is hidden whole."""
_ROUND = 1 + LONGER + (1 + LONGER)
NOTHING = 0.8
"""A share of more is the noise of one that computes nothing meanwhile."""


def exposed_share(
    engine: Engine,
    all_reduce: Callable[[int], Action | Call],
    seconds_of: Callable[[int], float],
    product_s: float,
    largest: Callable[[float], float],
    budget_s: float,
) -> float:
    """In (0, 1]; 1 where nothing is hidden. Every rank must call it, and gets the same.

    Args:
        all_reduce: of so many bytes.
        seconds_of: what that takes, about.
        product_s: one of the engine's products in float32.
        largest: of the ranks' numbers the largest; a barrier too.
        budget_s: about how long it may take.
    """
    fits = [size for size in SIZES if FEWEST * _ROUND * seconds_of(size) <= budget_s]
    size = (fits or SIZES[-1:])[0]
    alone_s = seconds_of(size)
    n_products = max(1, round(LONGER * alone_s / product_s))
    call = all_reduce(size)
    actions = [engine.beside(*each) for each in ((None, 0), (call, 0), (None, n_products), (call, n_products))]
    times_s: list[list[float]] = [[] for _ in actions]
    for number in range(1 + max(FEWEST, min(MOST, int(budget_s / (_ROUND * alone_s))))):
        for action, times in zip(actions, times_s, strict=True):
            if action is None:
                return 1.0
            largest(0.0)
            taken_s = largest(time_s(action))
            if number:  # an engine's first runs prepare
                times.append(taken_s)
    nothing_s, collective_s, products_s, both_s = (sorted(times)[len(times) // 2] for times in times_s)
    if collective_s <= nothing_s:
        return 1.0
    share = (both_s - products_s) / (collective_s - nothing_s)
    return 1.0 if share > NOTHING else max(share, 0.01)
