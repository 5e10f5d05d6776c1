"""Order the passes of a pipeline: which micro-batch's forward or backward pass each stage runs when.

- ``1f1b``: a stage runs a few forward passes ahead, then a backward and a forward pass in turn. So many micro-batches are in
  flight in it that none waits: as many as there are stages from it on, or as is asked for. Over a slow link more pay.
- ``gpipe``: all forward passes, then all backward passes. All micro-batches are in flight.
- ``zero-bubble``: as 1F1B, but a backward pass computes only what an earlier stage waits for. The gradients of parameters
  are a pass of their own, which is deferred to where the stage would wait (Qi et al., Zero Bubble Pipeline Parallelism,
  2023, section 2). Where each stage defers as many as there are stages before it (their ZB-H1), none holds more
  micro-batches, in flight or deferred, than there are stages.

A stage runs its passes in its own order, each as soon as it has what the neighbouring stages send. So no order that
:func:`merged` accepts can end in a deadlock: that is one order of all passes in which each comes after those that it needs.

What is in flight in a stage is its number of registers, in OneFlow's words (section 4.2): it starts no further forward pass
before a backward pass has freed one. So what it has sent and its neighbour hasn't taken is bounded too
(:func:`most_waiting`), and nobody has to wait to send.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ..common.errors import InputError, short

ONE_FORWARD_ONE_BACKWARD, ALL_FORWARD, ZERO_BUBBLE = "1f1b", "gpipe", "zero-bubble"
SCHEDULES = (ONE_FORWARD_ONE_BACKWARD, ALL_FORWARD, ZERO_BUBBLE)
FORWARD, BACKWARD, PARAMETERS = "forward", "backward", "parameters"
"""The kinds of passes of a micro-batch: the forward pass; the backward pass, which computes all gradients, or those that an
earlier stage waits for; and the pass that computes the gradients of parameters which the backward pass has left."""
MOST_MORE_IN_FLIGHT = 4
"""So many more micro-batches in flight are tried at most for each stage that follows."""
DEFERRED_PER_STAGE = (1, 2, 4)
"""So many deferred micro-batches are tried for each stage before."""

Times = Any
"""A time (float), or the times of many plans (float64[plans]), which are then computed at once."""


class Pass(NamedTuple):
    """A pass of a micro-batch in one stage; its work is FORWARD, BACKWARD or PARAMETERS."""

    stage: int
    micro_batch: int
    work: str

    def __str__(self) -> str:
        letter = {FORWARD: "F", BACKWARD: "B", PARAMETERS: "W"}[self.work]
        return f"{letter}{self.micro_batch} of stage {self.stage}"


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


def most_waiting(in_flight: Sequence[int], source: int, target: int) -> tuple[int, int]:
    """Return how many micro-batches' messages may wait at most for two stages of which one sends to the other.

    All that is sent is of micro-batches in flight in the source: those whose message waits at the source or the target,
    those in flight in the target, and those whose gradient waits at the target or the source.

    Args:
        in_flight: for each stage, how many micro-batches are in flight at most.

    Returns:
        Those whose messages and gradients wait at the target beside as many as it has in flight, and at the source.
    """
    return max(0, in_flight[source] - in_flight[target]), in_flight[source]


def tried_deferred(n_stages: int, n_micro_batches: int) -> list[tuple[int, ...]]:
    """Return, for each stage, how many micro-batches are tried whose gradients of parameters are deferred: the fewest first.

    The first stage defers none: nobody waits for its gradients.
    """
    tried = (tuple(min(n_micro_batches, stage * each) for stage in range(n_stages)) for each in DEFERRED_PER_STAGE)
    return list(dict.fromkeys(tried))


def pass_orders(
    schedule: str, n_micro_batches: int, in_flight: Sequence[int], deferred: Sequence[int] | None = None
) -> Orders:
    """Return the order of each stage's passes.

    Args:
        in_flight: for each stage, how many micro-batches have run their forward pass and not their backward pass at most.
            A stage never has more in flight than one before it, which would have to send more than it may compute.
        deferred: of ``zero-bubble``, for each stage how many micro-batches have run their backward pass and not the pass of
            their parameters at most, while another one runs. None: 0 for all, which is 1F1B.

    Raises:
        InputError: there is no such schedule.
    """
    check_schedule(schedule)
    found, ahead = [], n_micro_batches
    for stage, most in enumerate(in_flight):
        ahead = n_micro_batches if schedule == ALL_FORWARD else max(1, min(most, ahead))
        waiting = deferred[stage] if schedule == ZERO_BUBBLE and deferred is not None else 0
        found.append(tuple(_order(stage, n_micro_batches, ahead, waiting)))
    return tuple(found)


class StepOrder(NamedTuple):
    """The order of a step's passes.

    Attributes:
        schedule: its name.
        n_micro_batches: the number of micro-batches.
        in_flight: for each stage, how many micro-batches have run their forward pass and not their backward pass at most.
        deferred: for each stage, how many have run that and not the pass of their parameters.
    """

    schedule: str
    n_micro_batches: int
    in_flight: tuple[int, ...]
    deferred: tuple[int, ...]

    @property
    def orders(self) -> Orders:
        """The order of each stage's passes."""
        return pass_orders(self.schedule, self.n_micro_batches, self.in_flight, self.deferred)


def tried_orders(schedule: str | None, n_stages: int, n_micro_batches: int) -> list[StepOrder]:
    """Return the orders that are tried, by ascending number of micro-batches that are held: all of a schedule.

    Without a schedule 1F1B and zero-bubble are tried. A batch that is taken at once has the same order in all of them.
    """
    n, none = n_micro_batches, (0,) * n_stages
    if n == 1:
        return [StepOrder(schedule or ONE_FORWARD_ONE_BACKWARD, 1, (1,) * n_stages, none)]
    if schedule == ALL_FORWARD:
        return [StepOrder(ALL_FORWARD, n, (n,) * n_stages, none)]
    tried = tried_in_flight(n_stages, n)
    found = []
    if schedule != ZERO_BUBBLE:
        found += [StepOrder(ONE_FORWARD_ONE_BACKWARD, n, in_flight, none) for in_flight in tried]
    if schedule != ONE_FORWARD_ONE_BACKWARD:
        every = product(tried_deferred(n_stages, n), tried)
        found += [StepOrder(ZERO_BUBBLE, n, in_flight, deferred) for deferred, in_flight in every]
    return found


def check_schedule(schedule: object) -> None:
    """Check that there is a schedule.

    Raises:
        InputError: there is none of this name.
    """
    if schedule == "interleaved":
        raise InputError(
            "schedule='interleaved' isn't supported: twice as many micro-batches, or 'zero-bubble', make stages wait as "
            f"little; choose one of {', '.join(SCHEDULES)}"
        )
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


def needs(each: Pass, n_stages: int) -> list[Pass]:
    """Return the passes of other stages, and the pass before of its own micro-batch and stage, that a pass needs."""
    if each.work == FORWARD:
        return [each._replace(stage=each.stage - 1)] if each.stage else []
    if each.work == PARAMETERS:
        return [each._replace(work=BACKWARD)]
    later = [each._replace(stage=each.stage + 1)] if each.stage + 1 < n_stages else []
    return [each._replace(work=FORWARD), *later]


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
    parameters: Sequence[Times] | None = None,
    early: Sequence[Times] | None = None,
) -> tuple[dict[Pass, Times], list[Times]]:
    """Return when each pass ends, and when the last pass of each stage does; see :func:`makespan`."""
    none: Times = 0.0 * forward[0]
    nothing = [none] * len(of_stages)
    late, parameters, early = list(late or nothing), parameters or nothing, early or nothing
    of_backward = list(backward)
    waiting = [whole - part for whole, part in zip(forward, early, strict=True)]
    takes = {FORWARD: waiting, BACKWARD: of_backward, PARAMETERS: parameters}
    for stage, order in enumerate(of_stages):
        if any(each.work == PARAMETERS for each in order):
            of_backward[stage], late[stage] = backward[stage] - parameters[stage], none
    ended: dict[Pass, Times] = {}
    free: list[Times] = [time + none for time in first or nothing]
    for each in merged(of_stages):
        ready = free[each.stage] + early[each.stage] if each.work == FORWARD else free[each.stage]
        for needed in needs(each, len(of_stages)):
            way: Times = none
            if needed.stage != each.stage:
                sent_before = late[needed.stage] if needed.work == BACKWARD else none
                way = transfer[min(each.stage, needed.stage)] - sent_before
            ready = np.maximum(ready, ended[needed] + way)
        ended[each] = free[each.stage] = ready + takes[each.work][each.stage]
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
    parameters: Sequence[Times] | None = None,
    early: Sequence[Times] | None = None,
) -> Times:
    """Return how long all passes take together, with what is sent before and after them.

    Args:
        forward: for each stage, the time of its forward pass of one micro-batch.
        backward: the same of its backward pass, with the gradients of parameters.
        transfer: for each pair of neighbouring stages, the time until what one has sent is there; it overlaps with passes.
        first: for each stage, when what its first pass needs is there; None: at once.
        last: for each stage, how long gradients that it sends back once a step are on their way after its last pass; None:
            not at all. Where they come the update waits for them.
        after: for each stage, the time of what it does after its last pass, such as updates; None: nothing.
        late: for each stage, how long its backward passes still take when what an earlier stage waits for has been sent;
            None: nothing.
        parameters: for each stage, the part of its backward pass's time that is a pass of its own where these are deferred;
            None: nothing.
        early: for each stage, the part of its forward pass's time that comes before it waits for what it is sent; None:
            nothing.
    """
    _, free = pass_ends(of_stages, forward, backward, transfer, first, late, parameters, early)
    return last_end(free, last or [0.0] * len(free), after or [0.0 * forward[0]] * len(free))


def last_end(ends: Sequence[Times], last: Sequence[float], after: Sequence[Times]) -> Times:
    """Return when a step ends whose stages end their passes at ``ends``; see :func:`makespan`."""
    # Of two stages the one that doesn't send back is the one that waits; of more it may be any.
    waits = reduce(np.maximum, after)
    of_stages = [
        np.maximum(end + own, end + way + waits) if way else end + own
        for end, way, own in zip(ends, last, after, strict=True)
    ]
    return reduce(np.maximum, of_stages)
