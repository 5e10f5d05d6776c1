"""Random orders of the passes of a step in stages."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tensoropt.program.orders.fast_makespan import PassTimes, Transfers, step_us
from tensoropt.program.orders.interleaved import INTERLEAVED, interleaved_orders, most_in_flight, tried_interleavings
from tensoropt.program.orders.schedule import SCHEDULES, ZERO_BUBBLE, StepOrder

OF_OWN_SUBMESHES = tuple(each for each in SCHEDULES if each != INTERLEAVED)
"""The schedules in which each stage has devices of its own."""


def interleaved(rng: random.Random, n_stages: int, n: int, n_submeshes: int) -> StepOrder:
    """Return one of the orders of interleaved stages that are tried."""
    drawn = rng.choice(tried_interleavings(n_stages, n, n_submeshes))
    in_flight = most_in_flight(n_stages, interleaved_orders(n_stages, n, drawn))
    return StepOrder(INTERLEAVED, n, in_flight, (0,) * n_stages, drawn)


def random_step_order(rng: random.Random, n_stages: int, n: int) -> StepOrder:
    """Return an order of any schedule, with random numbers of micro-batches in flight and deferred."""
    shared = [count for count in range(2, n_stages // 2 + 1) if n_stages % count == 0]
    schedule = rng.choice(SCHEDULES if shared else OF_OWN_SUBMESHES)
    if schedule == INTERLEAVED:
        return interleaved(rng, n_stages, n, rng.choice(shared))
    in_flight = tuple(rng.randint(1, n) for _ in range(n_stages))
    deferred = tuple(rng.randint(0, n) if schedule == ZERO_BUBBLE else 0 for _ in range(n_stages))
    return StepOrder(schedule, n, in_flight, deferred)


def order_of(schedule: str, n: int, in_flight: Sequence[int], deferred: Sequence[int] | None = None) -> StepOrder:
    """Return an order of stages that each have devices of their own; without ``deferred`` none is."""
    return StepOrder(schedule, n, tuple(in_flight), tuple(deferred or [0] * len(in_flight)))


def makespan(
    order: StepOrder, forward: Sequence[Any], backward: Sequence[Any], transfer: Sequence[float], *ends: Any, **rest: Any
) -> Any:
    """Return the time of a step; what isn't given takes none."""
    given, none = {**dict(zip(("before", "last", "after"), ends, strict=False)), **rest}, [0.0] * len(forward)
    on_the_way, both = Transfers(list(transfer), none, given.pop("last", none)), zip(forward, backward, strict=True)
    of_stages = ({name: values[i] for name, values in given.items()} for i in range(len(forward)))
    return step_us([PassTimes(*two, **each) for two, each in zip(both, of_stages, strict=True)], on_the_way, order)
