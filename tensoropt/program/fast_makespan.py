"""Compute when the passes of a step end, for one plan or many at once.

What each pass of an order needs is worked out once, and Numba compiles the loop over passes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from .compiled import compiled
from .passes import BACKWARD, FORWARD, PARAMETERS, Pass, merged, needs
from .schedule import StepOrder, Times, last_end, of_submeshes

_WORKS = (FORWARD, BACKWARD, PARAMETERS)
_FORWARD, _BACKWARD = _WORKS.index(FORWARD), _WORKS.index(BACKWARD)


class _Passes(NamedTuple):
    """The passes of an order, N of them, such that each comes after those that it needs.

    Attributes:
        stage, submesh, work: of each pass its stage, the stage's submesh, and the number of its work, int32[N].
        needed: the numbers of up to two passes that each needs; -1 for none, int32[N, 2].
        link: for each of these the pair of neighbouring stages that lies between; -1 for none, int32[N, 2].
        is_deferring: whether each stage has passes of parameters, bool[stages].
    """

    stage: np.ndarray
    submesh: np.ndarray
    work: np.ndarray
    needed: np.ndarray
    link: np.ndarray
    is_deferring: np.ndarray


@lru_cache(maxsize=256)
def _passes(order: StepOrder) -> _Passes:
    passes = merged(order.orders)
    number = {each: i for i, each in enumerate(passes)}
    n_stages = len(order.in_flight)
    needed, link = np.full((2, len(passes), 2), -1, np.int32)
    for i, each in enumerate(passes):
        for k, other in enumerate(needs(each, n_stages)):
            needed[i, k] = number[other]
            link[i, k] = min(each.stage, other.stage) if each.stage != other.stage else -1
    stage = np.array([each.stage for each in passes], np.int32)
    work = np.array([_WORKS.index(each.work) for each in passes], np.int32)
    is_deferring = np.isin(np.arange(n_stages), stage[work == _WORKS.index(PARAMETERS)])
    return _Passes(stage, np.array(order.submeshes, np.int32)[stage], work, needed, link, is_deferring)


@compiled
def _run(
    stage: Any, submesh: Any, work: Any, needed: Any, link: Any, takes: Any, early: Any, late: Any, transfer: Any, free: Any,
    ended: Any,
) -> None:  # fmt: skip
    """Set ``free``, when each submesh may begin, to when it ends, float64[submeshes, plans].

    ``ended`` is set to when each pass of the last plan ends, float64[N]. The others are float64[stages, plans], ``takes``
    one for each work.
    """
    for plan in range(free.shape[1]):
        for i in range(len(stage)):
            own = stage[i]
            ready = free[submesh[i], plan]
            if work[i] == _FORWARD:
                ready += early[own, plan]
            for k in range(2):
                other = needed[i, k]
                if other >= 0:
                    way = 0.0
                    if link[i, k] >= 0:
                        way = transfer[link[i, k]]
                        if work[other] == _BACKWARD:
                            way -= late[stage[other], plan]
                    ready = max(ready, ended[other] + way)
            ended[i] = ready + takes[work[i], own, plan]
            free[submesh[i], plan] = ended[i]


def fast_makespan(
    order: StepOrder,
    forward: Sequence[Times],
    backward: Sequence[Times],
    transfer: Sequence[float],
    first: Sequence[Times],
    last: Sequence[float],
    after: Sequence[Times],
    late: Sequence[Times],
    parameters: Sequence[Times],
    early: Sequence[Times],
) -> Times:
    """Return how long all passes take together, with what is sent before and after them.

    Args:
        forward: for each stage, the time of its forward pass of one micro-batch.
        backward: the same of its backward pass, with the gradients of parameters.
        transfer: for each pair of neighbouring stages, the time until what one has sent is there; it overlaps with passes.
        first: for each stage, when what its first pass needs is there.
        last: for each stage, how long gradients that it sends back once a step are on their way after its last pass. Where
            they come the update waits for them.
        after: for each stage, the time of what it does after its last pass, such as updates.
        late: for each stage, how long its backward passes still take when what an earlier stage waits for has been sent.
        parameters: for each stage, the part of its backward pass's time that is a pass of its own where these are deferred.
        early: for each stage, the part of its forward pass's time that comes before it waits for what it is sent.
    """
    free, _ = _ends(order, forward, backward, transfer, first, late, parameters, early)
    return last_end(free, order.submeshes, last, after)


def pass_ends(
    order: StepOrder,
    forward: Sequence[float],
    backward: Sequence[float],
    transfer: Sequence[float],
    first: Sequence[float],
    late: Sequence[float],
    parameters: Sequence[float],
    early: Sequence[float],
) -> tuple[dict[Pass, float], list[float]]:
    """Return when each pass ends, and when the last pass of each submesh does; see :func:`fast_makespan`."""
    free, ended = _ends(order, forward, backward, transfer, first, late, parameters, early)
    return dict(zip(merged(order.orders), ended.tolist(), strict=True)), free


def _ends(order: StepOrder, forward: Any, backward: Any, transfer: Sequence[float], *others: Any) -> tuple[list[Any], Any]:
    """Return when each submesh ends, and when each pass of the last plan does; see :func:`fast_makespan`."""
    given = [*forward, *backward, *chain.from_iterable(others)]
    shape = np.broadcast_shapes(*(np.shape(each) for each in given))
    arrays = np.array(given, np.float64)[:, None] if not shape else _broadcast(given, math.prod(shape))
    of_forward, of_backward, begins, of_late, of_parameters, of_early = (each.copy() for each in np.split(arrays, 6))
    passes = _passes(order)
    free, ended = np.array(of_submeshes(begins, order.submeshes, np.maximum)), np.empty(len(passes.stage))
    divided = passes.is_deferring
    of_backward[divided] -= of_parameters[divided]
    of_late[divided] = 0.0
    takes = np.stack([of_forward - of_early, of_backward, of_parameters])
    _run(*passes[:5], takes, of_early, of_late, np.array([*transfer, 0.0]), free, ended)
    return [each if shape else float(each[0]) for each in free], ended


def _broadcast(given: Sequence[Times], n: int) -> np.ndarray:
    """Return times, each one or n of them, as rows of n."""
    return np.stack([np.broadcast_to(np.asarray(each, np.float64).reshape(-1), (n,)) for each in given])
