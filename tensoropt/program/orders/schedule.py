"""Order the passes of a pipeline: which micro-batch's forward or backward pass each stage runs when.

- ``1f1b``: a stage runs a few forward passes ahead, then a backward and a forward pass in turn. So many micro-batches are in
  flight in it that none waits: as many as there are stages from it on, or as is asked for. Over a slow link more pay.
- ``gpipe``: all forward passes, then all backward passes. All micro-batches are in flight.
- ``zero-bubble``: as 1F1B, but a backward pass computes only what an earlier stage waits for. The gradients of parameters
  are a pass of their own, which is deferred to where the stage would wait (Qi et al., Zero Bubble Pipeline Parallelism,
  2023, section 2). Where each stage defers as many as there are stages before it (their ZB-H1), none holds more
  micro-batches, in flight or deferred, than there are stages.
- ``interleaved``: as 1F1B, but each submesh has several stages (:mod:`.interleaved`).

A submesh runs the passes of its stages in its own order, each as soon as it has what the neighbouring stages send. So no
order that :func:`.passes.merged` accepts can end in a deadlock: that is one order of all passes in which each comes after
those that it needs.

What is in flight in a stage is its number of registers, in OneFlow's words (section 4.2): it starts no further forward pass
before a backward pass has freed one. So what it has sent and its neighbour hasn't taken is bounded too, and nobody has to
wait to send: all that is sent is of micro-batches in flight in the source, those whose message waits at either end, those in
flight in the target, and those whose gradient waits at either end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, reduce
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ...common.errors import InputError, short
from .interleaved import INTERLEAVED, Interleaving, interleaved_orders, most_in_flight, tried_interleavings
from .passes import BACKWARD, FORWARD, PARAMETERS, Orders, Pass

ONE_FORWARD_ONE_BACKWARD, ALL_FORWARD, ZERO_BUBBLE = "1f1b", "gpipe", "zero-bubble"
PLAIN = "plain"
"""The order of one stage: a micro-batch after the other, each forward and backward."""
SCHEDULES = (ONE_FORWARD_ONE_BACKWARD, ALL_FORWARD, ZERO_BUBBLE, INTERLEAVED)
MOST_MORE_IN_FLIGHT = 4
"""So many more micro-batches in flight are tried at most for each stage that follows."""
DEFERRED_PER_STAGE = (1, 2, 4)
"""So many deferred micro-batches are tried for each stage before."""

Times = Any
"""A time (float), or the times of many plans (float64[plans]), which are then computed at once."""


def least_in_flight(n_stages: int, n_micro_batches: int) -> tuple[int, ...]:
    """Return, for each stage, the fewest micro-batches in flight with which none waits where all take equally long."""
    return tuple(min(n_stages - stage, n_micro_batches) for stage in range(n_stages))


def tried_in_flight(n_stages: int, n_micro_batches: int) -> list[tuple[int, ...]]:
    """Return, for each stage, how many micro-batches in flight are tried: the fewest, and more for each stage that follows.

    More hide what is on its way, and let an earlier stage that takes longer go on while a later one is at its first.
    """
    ways = (
        tuple(min(n_micro_batches, 1 + (n_stages - 1 - stage) * (1 + extra)) for stage in range(n_stages))
        for extra in range(MOST_MORE_IN_FLIGHT + 1)
    )
    return list(dict.fromkeys(ways))


def tried_deferred(n_stages: int, n_micro_batches: int) -> list[tuple[int, ...]]:
    """Return, for each stage, how many micro-batches are tried whose gradients of parameters are deferred: the fewest first.

    The first stage defers none: nobody waits for its gradients.
    """
    ways = (tuple(min(n_micro_batches, stage * factor) for stage in range(n_stages)) for factor in DEFERRED_PER_STAGE)
    return list(dict.fromkeys(ways))


class StepOrder(NamedTuple):
    """The order of a step's passes.

    Attributes:
        in_flight: for each stage, how many micro-batches have run their forward pass and not their backward pass at most.
            A stage never has more in flight than one before it, which would have to send more than it may compute.
        deferred: of ``zero-bubble``, for each stage how many micro-batches have run their backward pass and not the pass of
            their parameters at most, while another one runs.
        interleaving: of ``interleaved``, how stages share submeshes, which ``in_flight`` follows from; None where each has
            one of its own.
    """

    schedule: str
    n_micro_batches: int
    in_flight: tuple[int, ...]
    deferred: tuple[int, ...]
    interleaving: Interleaving | None = None

    @property
    def orders(self) -> Orders:
        """The order of the passes of each stage, or of each submesh where stages are interleaved.

        Raises:
            InputError: there is no such schedule.
        """
        return _orders_of(self)

    @property
    def submeshes(self) -> tuple[int, ...]:
        """The number of each stage's submesh."""
        n_stages = len(self.in_flight)
        n_submeshes = n_stages if self.interleaving is None else self.interleaving.n_submeshes
        return tuple(stage % n_submeshes for stage in range(n_stages))


@lru_cache(maxsize=8)  # each stage of a step asks for them
def _orders_of(step: StepOrder) -> Orders:
    schedule, n = step.schedule, step.n_micro_batches
    if schedule != PLAIN:
        check_schedule(schedule)
    if schedule == INTERLEAVED:
        assert step.interleaving
        return interleaved_orders(len(step.in_flight), n, step.interleaving)
    orders, ahead = [], n
    for stage, (most, deferred) in enumerate(zip(step.in_flight, step.deferred, strict=True)):
        ahead = n if schedule == ALL_FORWARD else max(1, min(most, ahead))
        orders.append(tuple(_order(stage, n, ahead, deferred if schedule == ZERO_BUBBLE else 0)))
    return tuple(orders)


def tried_orders(
    schedule: str | None, n_stages: int, n_micro_batches: int, n_submeshes: int | None = None
) -> list[StepOrder]:
    """Return the orders that are tried, by ascending number of micro-batches that are held: all of a schedule.

    Without a schedule 1F1B and zero-bubble are tried. A batch that is taken at once has the same order in all of them.

    Args:
        n_submeshes: how many submeshes interleaved stages share; None: each stage has one of its own.
    """
    n, none = n_micro_batches, (0,) * n_stages
    if n_submeshes is not None and n_submeshes < n_stages:
        orders = []
        for interleaving in tried_interleavings(n_stages, n, n_submeshes):
            in_flight = most_in_flight(n_stages, interleaved_orders(n_stages, n, interleaving))
            orders.append(StepOrder(INTERLEAVED, n, in_flight, none, interleaving))
        return orders
    if n == 1:
        return [StepOrder(schedule or ONE_FORWARD_ONE_BACKWARD, 1, (1,) * n_stages, none)]
    if schedule == ALL_FORWARD:
        return [StepOrder(ALL_FORWARD, n, (n,) * n_stages, none)]
    all_in_flight = tried_in_flight(n_stages, n)
    orders = []
    if schedule != ZERO_BUBBLE:
        orders += [StepOrder(ONE_FORWARD_ONE_BACKWARD, n, in_flight, none) for in_flight in all_in_flight]
    if schedule != ONE_FORWARD_ONE_BACKWARD:
        every = product(tried_deferred(n_stages, n), all_in_flight)
        orders += [StepOrder(ZERO_BUBBLE, n, in_flight, deferred) for deferred, in_flight in every]
    return orders


def check_schedule(schedule: object) -> None:
    """Check that there is a schedule.

    Raises:
        InputError: there is none of this name.
    """
    if schedule not in SCHEDULES:
        names = ", ".join(map(repr, SCHEDULES[:-1]))
        raise InputError(f"unknown schedule {short(schedule)}; expected {names} or {SCHEDULES[-1]!r}")


def _order(stage: int, n: int, ahead: int, deferred: int) -> Iterator[Pass]:
    """Yield a stage's passes, with so many forward passes ahead and so many passes of parameters deferred."""
    forward = [Pass(stage, index, FORWARD) for index in range(n)]
    waiting: deque[Pass] = deque()
    yield from forward[:ahead]
    for index in range(n):
        yield Pass(stage, index, BACKWARD)
        if deferred:
            waiting.append(Pass(stage, index, PARAMETERS))
        if len(waiting) > deferred:
            yield waiting.popleft()
        yield from forward[ahead + index : ahead + index + 1]
    yield from waiting


def of_submeshes(
    of_stages: Sequence[Times], submeshes: Sequence[int], combine: Callable[[Times, Times], Times]
) -> list[Times]:
    """Return what stages have, combined for those of each submesh.

    Args:
        submeshes: the number of each stage's submesh.
    """
    totals: dict[int, Times] = {}
    for value, submesh in zip(of_stages, submeshes, strict=True):
        totals[submesh] = combine(totals[submesh], value) if submesh in totals else value
    return [totals[submesh] for submesh in sorted(totals)]


def last_end(ends: Sequence[Times], submeshes: Sequence[int], last: Sequence[float], after: Sequence[Times]) -> Times:
    """Return when a step ends whose submeshes end their passes at ``ends``; see :func:`.fast_makespan.step_us`.

    Args:
        submeshes: the number of each stage's submesh.
    """
    last, after = of_submeshes(last, submeshes, max), of_submeshes(after, submeshes, np.add)
    # Of two submeshes the one that doesn't send back is the one that waits; of more it may be any.
    waits = reduce(np.maximum, after)
    times = [
        np.maximum(end + own, end + way + waits) if way else end + own
        for end, way, own in zip(ends, last, after, strict=True)
    ]
    return reduce(np.maximum, times)
