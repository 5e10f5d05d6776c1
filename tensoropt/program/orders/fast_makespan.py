"""Compute when the passes of a step end, for one plan or many at once.

What each pass of an order needs is worked out once, and Numba compiles the loop over passes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache, reduce
from operator import add, attrgetter
from typing import Any, NamedTuple

import numpy as np

from .passes import WORKS, Pass, merged, needs
from .schedule import StepOrder, Times, last_end, of_submeshes

_FORWARD, _BACKWARD, _PARAMETERS = range(len(WORKS))


class _Passes(NamedTuple):
    """The passes of an order, N of them, such that each comes after those that it needs.

    Attributes:
        stage, submesh, work: of each pass its stage, the stage's submesh, and the number of its work, int32[N].
        sources: the numbers of up to two passes that each needs; -1 for none, int32[N, 2].
        link: for each of these the pair of neighbouring stages that lies between; -1 for none, int32[N, 2].
        is_deferring: whether each stage has passes of parameters, bool[stages].
    """

    stage: np.ndarray
    submesh: np.ndarray
    work: np.ndarray
    sources: np.ndarray
    link: np.ndarray
    is_deferring: np.ndarray


@lru_cache(maxsize=256)
def _passes(order: StepOrder) -> _Passes:
    passes = merged(order.orders)
    number = {run: i for i, run in enumerate(passes)}
    n_stages = len(order.in_flight)
    sources, link = np.full((2, len(passes), 2), -1, np.int32)
    for i, run in enumerate(passes):
        for k, other in enumerate(needs(run, n_stages)):
            sources[i, k] = number[other]
            link[i, k] = min(run.stage, other.stage) if run.stage != other.stage else -1
    stage = np.array([run.stage for run in passes], np.int32)
    work = np.array([WORKS.index(run.work) for run in passes], np.int32)
    is_deferring = np.isin(np.arange(n_stages), stage[work == _PARAMETERS])
    return _Passes(stage, np.array(order.submeshes, np.int32)[stage], work, sources, link, is_deferring)


def _run(  # noqa: PLR0913
    stage: Any, submesh: Any, work: Any, sources: Any, link: Any, takes: Any, early: Any, late: Any, transfer: Any,
    free: Any, ended: Any,
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
                other = sources[i, k]
                if other >= 0:
                    way = 0.0
                    if link[i, k] >= 0:
                        way = transfer[link[i, k]]
                        if work[other] == _BACKWARD:
                            way -= late[stage[other], plan]
                    ready = max(ready, ended[other] + way)
            ended[i] = ready + takes[work[i], own, plan]
            free[submesh[i], plan] = ended[i]


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Microseconds of a stage: of a micro-batch's passes, and of what runs once a step. Many plans have float64[plans] each.

    Attributes:
        before: until its first pass may begin.
        after: when its last pass is over.
        late: the end of a backward pass, when what earlier stages wait for has been sent.
        parameters: the part of a backward pass that no earlier stage waits for, which a schedule may defer: the gradients of
            parameters, and all of branches that begin in the stage.
        early: the part of a forward pass that doesn't wait for what the stage is sent, which comes first: such branches.
    """

    forward: Times = 0.0
    backward: Times = 0.0
    before: Times = 0.0
    after: Times = 0.0
    late: Times = 0.0
    parameters: Times = 0.0
    early: Times = 0.0

    def __add__(self, other: PassTimes) -> PassTimes:
        return PassTimes(*map(add, _times_of(self), _times_of(other)))

    def scaled(self, factor: Times) -> PassTimes:
        return PassTimes(*(time * factor for time in _times_of(self)))

    def total(self, n_micro_batches: int) -> Times:
        """Return the time of all passes of a step and of what runs once."""
        return n_micro_batches * (self.forward + self.backward) + self.before + self.after


_times_of = attrgetter(*(kind.name for kind in fields(PassTimes)))


class Transfers(NamedTuple):
    """How long transfers between stages are on their way, in microseconds; see :func:`step_us`.

    Attributes:
        each: for each pair of neighbouring stages, of a micro-batch's tensors; it overlaps with passes.
        first: for each stage, of what it receives before its first pass.
        last: for each stage, of what it sends back after its last pass. Where it comes the update waits for it.
    """

    each: list[float]
    first: list[float]
    last: list[float]


def first_passes_us(times: Sequence[PassTimes], on_the_way: Transfers, submeshes: Sequence[int]) -> list[Times]:
    """Return for each stage when what its first pass needs is there.

    Args:
        submeshes: the number of each stage's submesh. What all stages of one do before their first passes comes first.
    """
    of_each = of_submeshes([of_stage.before for of_stage in times], submeshes, np.add)
    begins = [of_each[submesh] for submesh in submeshes]
    for stage, way in enumerate(on_the_way.first):
        if way:
            begins[stage] = np.maximum(begins[stage], way + reduce(np.maximum, of_each))
    return begins


def step_us(times: Sequence[PassTimes], on_the_way: Transfers, order: StepOrder) -> Times:
    """Return the predicted time of a step whose stages run their passes in an order, or the times of many plans."""
    free, _ = _ends(times, on_the_way, order)
    return last_end(free, order.submeshes, on_the_way.last, [of_stage.after for of_stage in times])


def pass_ends(times: Sequence[PassTimes], on_the_way: Transfers, order: StepOrder) -> tuple[dict[Pass, float], list[float]]:
    """Return when each pass ends, and when the last pass of each submesh does; see :func:`step_us`."""
    free, ended = _ends(times, on_the_way, order)
    return dict(zip(merged(order.orders), ended.tolist(), strict=True)), free


def _ends(times: Sequence[PassTimes], on_the_way: Transfers, order: StepOrder) -> tuple[list[Any], Any]:
    """Return when each submesh ends, and when each pass of the last plan does."""
    from ...common.compiled import compiled  # here, since loading Numba takes half a second

    first = first_passes_us(times, on_the_way, order.submeshes)
    kinds = ("forward", "backward", "late", "parameters", "early")
    values = [*first, *(getattr(of_stage, kind) for kind in kinds for of_stage in times)]
    shape = np.broadcast_shapes(*(np.shape(value) for value in values))
    n_plans = math.prod(shape)
    rows = [np.broadcast_to(np.asarray(value, np.float64).reshape(-1), (n_plans,)) for value in values if shape]
    arrays = np.stack(rows) if shape else np.array(values, np.float64)
    begins, forward, backward, late, parameters, early = arrays.reshape(6, len(times), -1)
    passes = _passes(order)
    free, ended = np.array(of_submeshes(list(begins), order.submeshes, np.maximum)), np.empty(len(passes.stage))
    divided = passes.is_deferring
    backward[divided] -= parameters[divided]
    late[divided] = 0.0
    takes = np.stack([forward - early, backward, parameters])
    compiled(_run)(*passes[:5], takes, early, late, np.array([*on_the_way.each, 0.0]), free, ended)
    return [end if shape else float(end[0]) for end in free], ended
