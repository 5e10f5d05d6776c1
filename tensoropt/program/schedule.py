"""Order the passes of a pipeline: which micro-batch's forward or backward pass each stage runs when.

- ``1f1b``: a stage runs a few forward passes ahead, then a backward and a forward pass in turn. So many micro-batches are in
  flight in it that none waits: as many as there are stages from it on, or as is asked for. Over a slow link more pay.
- ``gpipe``: all forward passes, then all backward passes. All micro-batches are in flight.

A stage runs its passes in its own order, each as soon as it has what the neighbouring stages send. So no order that
:func:`merged` accepts can end in a deadlock: that is one order of all passes in which each comes after those that it needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from ..common.errors import InputError

ONE_FORWARD_ONE_BACKWARD, ALL_FORWARD = "1f1b", "gpipe"
SCHEDULES = (ONE_FORWARD_ONE_BACKWARD, ALL_FORWARD)
MOST_MORE_IN_FLIGHT = 4
"""So many more micro-batches in flight are tried at most for each stage that follows."""

Times = Any
"""A time (float), or the times of many plans (float64[plans]), which are then computed at once."""


class Pass(NamedTuple):
    """The forward or backward pass of a micro-batch in one stage."""

    stage: int
    micro_batch: int
    is_backward: bool

    def __str__(self) -> str:
        return f"{'B' if self.is_backward else 'F'}{self.micro_batch} of stage {self.stage}"


Orders = tuple[tuple[Pass, ...], ...]


def least_in_flight(n_stages: int, n_micro_batches: int) -> tuple[int, ...]:
    """Return, for each stage, the fewest micro-batches in flight with which none waits where all take equally long."""
    return tuple(min(n_stages - stage, n_micro_batches) for stage in range(n_stages))


def tried_in_flight(n_stages: int, n_micro_batches: int) -> list[tuple[int, ...]]:
    """Return, for each stage, how many micro-batches in flight are tried: the fewest, and more for each stage that follows.

    More hide what is on its way, and let an earlier stage that takes longer go on while a later one is at its first.
    """
    more = (
        tuple(min(n_micro_batches, 1 + (n_stages - 1 - stage) * (1 + each)) for stage in range(n_stages))
        for each in range(MOST_MORE_IN_FLIGHT + 1)
    )
    return list(dict.fromkeys(more))


def pass_orders(schedule: str, n_micro_batches: int, in_flight: Sequence[int]) -> Orders:
    """Return the order of each stage's passes.

    Args:
        in_flight: for each stage, how many micro-batches have run their forward pass and not their backward pass at most.
            A stage never has more in flight than one before it, which would have to send more than it may compute.

    Raises:
        InputError: there is no such schedule.
    """
    if schedule not in SCHEDULES:
        raise InputError(f"unknown schedule {schedule!r}; expected {' or '.join(map(repr, SCHEDULES))}")
    found, ahead = [], n_micro_batches
    for stage, most in enumerate(in_flight):
        ahead = n_micro_batches if schedule == ALL_FORWARD else max(1, min(most, ahead))
        forward = [Pass(stage, index, False) for index in range(n_micro_batches)]
        order = forward[:ahead]
        for index in range(n_micro_batches):
            order.append(Pass(stage, index, True))
            order += forward[ahead + index : ahead + index + 1]
        found.append(tuple(order))
    return tuple(found)


def needs(each: Pass, n_stages: int) -> list[Pass]:
    """Return the passes of other stages, and the forward pass of its own, that a pass needs."""
    if not each.is_backward:
        return [each._replace(stage=each.stage - 1)] if each.stage else []
    later = [each._replace(stage=each.stage + 1)] if each.stage + 1 < n_stages else []
    return [each._replace(is_backward=False), *later]


def merged(of_stages: Orders) -> list[Pass]:
    """Return one order of all passes: each stage's own, and each pass after those that it needs.

    Raises:
        ValueError: there is none; the message names the passes that wait for each other.
    """
    done: set[Pass] = set()
    found: list[Pass] = []
    at = [0] * len(of_stages)
    while True:
        before = len(found)
        for stage, order in enumerate(of_stages):
            while at[stage] < len(order) and done.issuperset(needs(order[at[stage]], len(of_stages))):
                done.add(order[at[stage]])
                found.append(order[at[stage]])
                at[stage] += 1
        if len(found) == before:
            break
    waiting = [order[index] for order, index in zip(of_stages, at, strict=True) if index < len(order)]
    if waiting:
        raise ValueError(f"passes wait for each other: {', '.join(map(str, waiting))}")
    return found


def pass_ends(
    of_stages: Orders,
    forward: Sequence[Times],
    backward: Sequence[Times],
    transfer: Sequence[float],
    first: Sequence[Times] | None = None,
    late: Sequence[Times] | None = None,
) -> tuple[dict[Pass, Times], list[Times]]:
    """Return when each pass ends, and when the last pass of each stage does; see :func:`makespan`."""
    ended: dict[Pass, Times] = {}
    free: list[Times] = [time + 0.0 * forward[0] for time in first or [0.0] * len(of_stages)]
    for each in merged(of_stages):
        ready = free[each.stage]
        for needed in needs(each, len(of_stages)):
            way: Times = 0.0 * forward[0]
            if needed.stage != each.stage:
                sent_before = late[needed.stage] if late and needed.is_backward else way
                way = transfer[min(each.stage, needed.stage)] - sent_before
            ready = np.maximum(ready, ended[needed] + way)
        takes = backward if each.is_backward else forward
        ended[each] = free[each.stage] = ready + takes[each.stage]
    return ended, free


def makespan(
    of_stages: Orders,
    forward: Sequence[Times],
    backward: Sequence[Times],
    transfer: Sequence[float],
    first: Sequence[Times] | None = None,
    last: Sequence[float] | None = None,
    after: Sequence[Times] | None = None,
    late: Sequence[Times] | None = None,
) -> Times:
    """Return how long all passes take together, with what is sent before and after them.

    Args:
        forward: for each stage, the time of its forward pass of one micro-batch.
        backward: the same of its backward pass.
        transfer: for each pair of neighbouring stages, the time until what one has sent is there; it overlaps with passes.
        first: for each stage, when what its first pass needs is there; None: at once.
        last: for each stage, how long gradients that it sends back once a step are on their way after its last pass; None:
            not at all. Where they come the update waits for them.
        after: for each stage, the time of what it does after its last pass, such as updates; None: nothing.
        late: for each stage, how long its backward passes still take when what an earlier stage waits for has been sent;
            None: nothing.
    """
    _, free = pass_ends(of_stages, forward, backward, transfer, first, late)
    after, last = after or [0.0 * forward[0]] * len(free), last or [0.0] * len(free)
    # Of two stages the one that doesn't send back is the one that waits; of more it may be any.
    waits = reduce(np.maximum, after)
    ends = [
        np.maximum(end + own, end + way + waits) if way else end + own
        for end, way, own in zip(free, last, after, strict=True)
    ]
    return reduce(np.maximum, ends)
