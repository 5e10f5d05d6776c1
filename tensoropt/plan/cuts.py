"""Choose where to cut a model into stages: the cuts with which a step is predicted to take the least time.

First the cuts with the shortest longest stage are found, by dynamic programming over places in program order, with sums of
operators' times and what crosses at both ends. These sums don't know what moves: a tied table and its lookups, or a penalty.
Nor is the shortest longest stage what counts: a first stage that takes longer hides what the others do, and a last one that
does waits for the first. So then one cut after the other is moved to the places that come next by the same sums, and the
step is predicted with what each stage really does (:func:`.stage_times.estimated_us`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..common.errors import InputError
from ..ir.graph import SOURCES
from ..profiling.hardware import Hardware
from ..sharding.model import Model
from ..sharding.stages import Stages
from .stage_times import OperatorTimes, estimated_us, way_back_and_forth_us

MOST_TRIED = 48
"""The most cuts that are predicted, over all of a model's."""
FEWEST_TRIED = 6
"""The fewest places that are tried for each cut."""


def balanced(
    model: Model,
    hardware: Hardware,
    n_stages: int,
    parallelism: int,
    n_micro_batches: int,
    times: OperatorTimes | None = None,
) -> Stages:
    """Return a model cut such that a step is predicted to take the least time of the cuts that are tried.

    Args:
        parallelism: the number of devices of each stage.
        times: those of the model's operators on these devices, where they are known.

    Raises:
        InputError: there are fewer places to cut at than stages need.
    """
    times = times or OperatorTimes(model.in_micro_batches(n_micro_batches), hardware, hardware.mesh(parallelism))
    places = _Places.of(times, way_back_and_forth_us(hardware, parallelism, n_stages))
    at = places.shortest_longest(n_stages)

    def predicted_us(at: Sequence[int]) -> float:
        stages = Stages(model, tuple(places.names[place] for place in at))
        try:
            if not all(places.variables & members for members in stages.members):
                return math.inf
            return estimated_us(stages, hardware, parallelism, times)
        except InputError:
            return math.inf

    least_us = predicted_us(at)
    for number in range(len(at)):
        for place in places.near(at, number, max(FEWEST_TRIED, MOST_TRIED // len(at))):
            moved = [*at[:number], place, *at[number + 1 :]]
            time_us = predicted_us(moved)
            if time_us < least_us:
                at, least_us = moved, time_us
    return Stages(model, tuple(places.names[place] for place in at))


@dataclass(frozen=True)
class _Places:
    """The places where a model may be cut: after each operator, in program order.

    Attributes:
        names: the operators.
        time_us: the time of all operators up to each of them, over all micro-batches.
        crossing_us: the time that it takes to send what crosses there, forward and back, over all micro-batches.
        trained: how many variables are used up to each of them.
        variables: the names of the variables that are trained.
    """

    names: Sequence[str]
    time_us: Sequence[float]
    crossing_us: Sequence[float]
    trained: Sequence[int]
    variables: frozenset[str]

    @classmethod
    def of(cls, times: OperatorTimes, us_per_byte: float) -> _Places:
        graph, n = times.graph, times.graph.n_micro_batches
        in_step = {op.name for op in graph.step_operators}
        last_use = {
            tensor.name: number
            for number, op in enumerate(graph.operators.values())
            if op.name in in_step
            for _, tensor in op.operands
        }
        names, until_us, crossings, trained = [], [], [], []
        total_us = 0.0
        alive: dict[str, int] = {}
        used: set[str] = set()
        for number, op in enumerate(graph.operators.values()):
            if op.name not in in_step or op.type in SOURCES or op.updates is not None:
                continue
            total_us += times.of[op.name].total(n) if op.name in times.of else 0.0
            for tensor in (tensor for _, tensor in op.operands if graph.producers[tensor.name].is_trainable):
                variable = graph.producers[tensor.name].name
                if variable not in used:
                    used.add(variable)
                    total_us += times.of[variable].total(n) + n * times.adding_us[variable]
            used_later = (tensor for tensor in op.outputs if last_use.get(tensor.name, -1) > number)
            alive.update({tensor.name: tensor.mem_bytes * graph.n_runs(tensor.name) for tensor in used_later})
            alive = {name: n_bytes for name, n_bytes in alive.items() if last_use[name] > number}
            names.append(op.name)
            until_us.append(total_us)
            crossings.append(us_per_byte * sum(alive.values()))
            trained.append(len(used))
        return cls(names, until_us, crossings, trained, frozenset(used))

    def longest(self, at: Sequence[int]) -> float:
        """Return the time of the longest stage, with what crosses at its ends."""
        ends = [*at, len(self.names) - 1]
        return max(self._own(start, end) for start, end in zip([-1, *at], ends, strict=True))

    def _own(self, start: int, end: int) -> float:
        before = (self.time_us[start], self.crossing_us[start]) if start >= 0 else (0.0, 0.0)
        return self.time_us[end] - before[0] + before[1] + self.crossing_us[end]

    def shortest_longest(self, n_stages: int) -> list[int]:
        """Return the cuts with which the longest stage takes the least time.

        Raises:
            InputError: there are fewer places to cut at than stages need.
        """
        n = len(self.names)
        best: list[list[float]] = [[math.inf] * n for _ in range(n_stages)]
        before: list[list[int]] = [[-1] * n for _ in range(n_stages)]
        for end in range(n):
            if self.trained[end]:
                best[0][end] = self._own(-1, end)
        for stage in range(1, n_stages):
            for end in range(n):
                for start in range(end):
                    if self.trained[end] == self.trained[start]:
                        continue
                    longest = max(best[stage - 1][start], self._own(start, end))
                    if longest < best[stage][end]:
                        best[stage][end], before[stage][end] = longest, start
        if math.isinf(best[-1][-1]):
            raise InputError(
                f"the model can't be cut into {n_stages} stages: each needs a variable that is trained; ask for fewer stages"
            )
        at = n - 1
        found: list[int] = []
        for stage in range(n_stages - 1, 0, -1):
            at = before[stage][at]
            found.insert(0, at)
        return found

    def near(self, at: Sequence[int], number: int, most: int) -> list[int]:
        """Return other places for one of the cuts, those with the shortest longest stage first."""
        first = at[number - 1] + 1 if number else 0
        end = at[number + 1] if number + 1 < len(at) else len(self.names) - 1
        others = (place for place in range(first, end) if place != at[number] and self._differs(place))
        return sorted(others, key=lambda place: self.longest([*at[:number], place, *at[number + 1 :]]))[:most]

    def _differs(self, place: int) -> bool:
        """Return whether a cut at a place isn't just one at the place before: it takes time, or less crosses."""
        if not place:
            return True
        same_time = self.time_us[place] == self.time_us[place - 1]
        return not (same_time and self.crossing_us[place] >= self.crossing_us[place - 1])
