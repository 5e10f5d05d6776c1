"""Choose where to cut a model into stages, and on which devices: so that a step is predicted to take the least time.

First the cuts and devices with the shortest longest stage are found, by dynamic programming over places in program order,
with sums of operators' times on so many devices and what crosses at both ends. These sums don't know what moves: a tied
table and its lookups, or a penalty. Nor is the shortest longest stage what counts: a first stage that takes longer hides
what the others do, and a last one that does waits for the first. So then one cut after the other is moved to the places that
come next by the same sums, and the step is predicted with what each stage really does (:func:`.times.estimated_us`).
Nor do sums know that branches run beside what comes before the cut, so the places where that saves most are tried too.

Within a memory limit, stages that hold more micro-batches in flight compute more again (:mod:`.needs`), so they get
fewer operators.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np

from ...common.errors import InputError
from ...ir.graph import SOURCES, Graph
from ...program.orders.schedule import ONE_FORWARD_ONE_BACKWARD, least_in_flight
from ...sharding.branches import branch_starts, earliest_needed
from ...sharding.stages import Stages
from .needs import FULL, StageNeeds
from .placement import Block, Choices, elsewhere, why_not_placed
from .times import OperatorTimes, TimesBySize, estimated_us, way_back_and_forth_us

MOST_TRIED = 48
"""The most cuts that are predicted, over all of a model's."""
FEWEST_TRIED = 6
"""The fewest places that are tried for each cut, and the most beside these for branches."""
LEAST_BESIDE = 0.05
"""Places are tried for branches if these are beside other operators for this share of all operators' time."""
MOST_PLACES = 512
"""At the most so many places are looked at for the shortest longest stage; the cuts are then moved among all."""
NEARBY = 8
"""Places are compared with those that are nearer than this part of an average stage."""
NOTHING: Mapping[str, Block] = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class Cut:
    """A model that is cut into stages, with their devices.

    Attributes:
        blocks: for each stage its devices, which interleaved ones share.
        time_us: the predicted time of a step, with each operator split as it is fastest, and with what a memory limit asks
            to be rematerialized; not a number where it wasn't predicted.
        needs: what its stages need; None where they share devices.
        beside: the share of all operators' time that two stages would run at the same time if the batch were taken at once,
            cut where that is most.
    """

    stages: Stages
    blocks: tuple[Block, ...]
    time_us: float
    beside: float = 0.0
    needs: StageNeeds | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        """For each stage the number of its devices."""
        return tuple(block.size for block in self.blocks)


def balanced(
    choices: Choices,
    times: TimesBySize,
    placed: Mapping[str, Block] = NOTHING,
    schedule: str | None = ONE_FORWARD_ONE_BACKWARD,
    cache: dict[tuple[str, ...], Stages] | None = None,
    needs: StageNeeds | None = None,
    limit_bytes: int | None = None,
) -> Cut:
    """Return a model cut such that a step is predicted to take the least time of the cuts that are tried.

    Args:
        choices: for each stage the devices that it may have. Each device has one stage, or several that are interleaved.
        placed: the devices of the operators that a user placed, by name.
        schedule: the order of the step's passes, see :func:`.tried_orders`.
        cache: cuts that were tried before, by the operators that stages end with; those tried now are added.
        limit_bytes: the memory limit per device, to which they then keep by rematerializing.

    Raises:
        InputError: there are fewer places to cut at than stages need, or none with which operators are as they are placed.
    """
    places = _Places.of(times, choices, placed)
    if needs is not None and limit_bytes is not None:
        places = replace(places, needs=needs, limit=FULL * limit_bytes)
    cuts, blocks = places.shortest_longest(choices)
    sizes = [block.size for block in blocks]
    stage_times = times.of(sizes)
    cache = {} if cache is None else cache

    def stages_at(cuts: Sequence[int]) -> Stages:
        ends = tuple(places.names[place] for place in cuts)
        if ends not in cache:
            cache[ends] = Stages(times.whole, ends)
        return cache[ends]

    def predicted_us(cuts: Sequence[int]) -> float:
        stages = stages_at(cuts)
        try:
            is_trained = all(places.variables & members for members in stages.members)
            if not is_trained or why_not_placed(stages, blocks, placed) is not None:
                return math.inf
            stages.check_optimizers()
            again_us = places.again_us(cuts, blocks)
            return estimated_us(stages, times.hardware, blocks, stage_times, schedule, again_us)
        except InputError:
            return math.inf

    least_us = predicted_us(cuts)
    for number in range(len(cuts)):
        for place in places.near(cuts, blocks, number, max(FEWEST_TRIED, MOST_TRIED // len(cuts))):
            candidate = [*cuts[:number], place, *cuts[number + 1 :]]
            time_us = predicted_us(candidate)
            if time_us < least_us:
                cuts, least_us = candidate, time_us
    stages = stages_at(cuts)
    reason = why_not_placed(stages, blocks, placed) if placed else None
    if reason is not None:
        raise InputError(reason)
    return Cut(stages, blocks, least_us, places.beside, needs)


@dataclass(frozen=True, eq=False)
class _Places:
    """The places where a model may be cut: after each of N operators, in program order. Arrays begin with none of them.

    Attributes:
        time_us: by number of devices, the time of all operators up to each place, over all micro-batches, float64[N + 1].
        crossing_bytes: the bytes that cross there, over all micro-batches, float64[N + 1].
        us_per_byte: by the number of a stage's first device, how long a byte takes there and its gradient back; by that of
            devices, from the last one to the first, which only interleaved stages send.
        trained: how many variables are used up to each place, int64[N + 1].
        variables: the names of the variables that are trained.
        placed: the devices of the operators that a user placed, by name.
        beside_us: by number of devices, for each place how long what comes before it and branches that begin after it can
            run at the same time, float64[N + 1].
        in_flight: for each stage, how many micro-batches are in flight.
        needs: what stages need, where they keep to a limit.
        limit: the bytes of a device that they keep to.
    """

    names: Sequence[str]
    time_us: Mapping[int, np.ndarray]
    crossing_bytes: np.ndarray
    us_per_byte: Mapping[int, float]
    trained: np.ndarray
    variables: frozenset[str]
    placed: Mapping[str, Block]
    beside_us: Mapping[int, np.ndarray]
    in_flight: tuple[int, ...] = ()
    needs: StageNeeds | None = None
    limit: float = math.inf

    @property
    def beside(self) -> float:
        """The largest share of all operators' time that is beside others."""
        return max(float(us.max() / (self.time_us[size][-1] or 1.0)) for size, us in self.beside_us.items())

    @classmethod
    def of(cls, times: TimesBySize, choices: Choices, placed: Mapping[str, Block] = NOTHING) -> _Places:
        blocks = {block for stage_blocks in choices for block in stage_blocks}
        sizes, n_devices = sorted({block.size for block in blocks}), max(block.end for block in blocks)
        is_interleaved = any(block.first == 0 for stage_blocks in choices[1:] for block in stage_blocks)
        average = sizes[0] if is_interleaved else max(1, n_devices // len(choices))
        pairs = ((Block(block.first - average, average), Block(block.first, average)) for block in blocks if block.first)
        rates = {target.first: way_back_and_forth_us(times.hardware, source, target) for source, target in pairs}
        pair = Block(n_devices - average, average), Block(0, average)
        back_us = way_back_and_forth_us(times.hardware, *pair) if is_interleaved else 0.0
        graph = times[sizes[0]].graph
        names, crossings, first_uses = _program_order(graph)
        time_us = {size: _time_up_to(graph, names, first_uses, times[size]) for size in sizes}
        trained = np.cumsum([0, *(len(variables) for variables in first_uses)])
        variables = frozenset(name for variables in first_uses for name in variables)
        us_per_byte = {0: back_us, n_devices: back_us, **rates}
        is_branching = len(branch_starts(graph)) > 1
        first_places = earliest_needed(graph, {name: place for place, name in enumerate(names)}) if is_branching else {}
        beside_us = {size: np.minimum(us, _time_beside(names, first_places, us)) for size, us in time_us.items()}
        in_flight = least_in_flight(len(choices), graph.n_micro_batches)
        crossing_bytes = np.array([0.0, *crossings])
        return cls(names, time_us, crossing_bytes, us_per_byte, trained, variables, placed, beside_us, in_flight)

    def own_us(self, stage: int, block: Block, start: np.ndarray | int, end: np.ndarray | int) -> np.ndarray:
        """Return the time of a stage on some devices, of the operators between two places, with what crosses at its ends.

        It is infinite where one of them is placed on others.
        """
        passes = self.time_us[block.size]
        entry = self.us_per_byte[block.first] * self.crossing_bytes[start]
        stage_us: np.ndarray = passes[end] - passes[start] + entry + self.us_per_byte[block.end] * self.crossing_bytes[end]
        if self.needs is not None:
            stage_us = self.needs.own_us(stage_us, block.size, start, end, self.in_flight[stage], self.limit)
        if not self.placed:
            return stage_us
        n_elsewhere = elsewhere(self.names, self.placed, block)
        return np.where(n_elsewhere[end] > n_elsewhere[start], np.inf, stage_us)

    def all_us(self, cuts: Sequence[int], blocks: Sequence[Block]) -> list[float]:
        ends = [0, *(place + 1 for place in cuts), len(self.names)]
        return [float(self.own_us(i, block, ends[i], ends[i + 1])) for i, block in enumerate(blocks)]

    def again_us(self, cuts: Sequence[int], blocks: Sequence[Block]) -> list[float]:
        """Return for each stage how much longer it takes to keep to the limit."""
        if self.needs is None:
            return []
        limited_us, free_us = self.all_us(cuts, blocks), replace(self, needs=None).all_us(cuts, blocks)
        return [limited - free for limited, free in zip(limited_us, free_us, strict=True)]

    def shortest_longest(self, choices: Choices) -> tuple[list[int], tuple[Block, ...]]:
        """Return the cuts, and the stages' devices, with which the longest stage takes the least time.

        O(P^2) for each of a stage's choices, with P places (:meth:`_few`).

        Raises:
            InputError: there are fewer places to cut at than stages need.
        """
        result = self._shortest_longest_at(self._few, choices)
        if result is None and len(self.names) >= MOST_PLACES:
            # Operators that are placed, or the only variables, may be next to each other.
            result = self._shortest_longest_at(np.arange(len(self.names) + 1), choices)
        if result is None:
            place = " where operators are placed" if self.placed else ""
            raise InputError(
                f"the model can't be cut into {len(choices)} stages{place}: each needs a variable that is trained, and the "
                f"model has {self.trained[-1]}; ask for fewer stages{', or place fewer operators' if self.placed else ''}"
            )
        return result

    def _shortest_longest_at(self, places: np.ndarray, choices: Choices) -> tuple[list[int], tuple[Block, ...]] | None:
        """Return what :meth:`shortest_longest` does for cuts at some places; None if none of them do."""
        is_trained = self.trained[places][None] > self.trained[places][:, None]
        cache: dict[tuple[float, ...], np.ndarray] = {}

        def own_us(stage: int, block: Block) -> np.ndarray:
            """Return the time of a stage from each place (row) to each (column)."""
            count = 0 if self.needs is None else self.in_flight[stage]
            ends_us = self.us_per_byte[block.first], self.us_per_byte[block.end]
            key = (count, block.size, *ends_us, *(block if self.placed else ()))
            if key not in cache:
                cache[key] = np.where(is_trained, self.own_us(stage, block, places[:, None], places[None]), np.inf)
            return cache[key]

        n_devices = max(block.end for stage_blocks in choices for block in stage_blocks)
        best = {0: np.where(places == 0, 0.0, np.inf)}  # by the device that the next stage begins with
        steps: list[tuple[dict[int, np.ndarray], dict[int, list[tuple[Block, np.ndarray]]]]] = []
        for stage, stage_blocks in enumerate(choices):
            arrivals: dict[int, list[tuple[Block, np.ndarray]]] = {}
            for block in stage_blocks:
                if block.first in best:
                    longest_us = np.maximum(best[block.first][:, None], own_us(stage, block)).min(axis=0)
                    arrivals.setdefault(block.end % n_devices, []).append((block, longest_us))
            steps.append((best, arrivals))
            best = {end: np.min([us for _, us in options], axis=0) for end, options in arrivals.items()}
        ((device, longest_us),) = best.items()
        if math.isinf(longest_us[-1]):
            return None
        place, cuts, blocks = len(places) - 1, list[int](), list[Block]()
        for stage, (previous, arrivals) in reversed([*enumerate(steps)]):
            block, _ = arrivals[device][int(np.argmin([us[place] for _, us in arrivals[device]]))]
            place, device = int(np.maximum(previous[block.first], own_us(stage, block)[:, place]).argmin()), block.first
            cuts.insert(0, int(places[place]) - 1)
            blocks.insert(0, block)
        return cuts[1:], tuple(blocks)

    @cached_property
    def _few(self) -> np.ndarray:
        """Return the places that the shortest longest stage is looked for at: all of up to MOST_PLACES.

        Of more, as many as that are taken from end to end: of some places in a row one where the fewest bytes cross. Within
        a memory limit these are the places where fewer bytes cross than nearby, if there are enough: what crosses can't be
        rematerialized, and stages between equal layers are alike, so that one search is for all.
        """
        n = len(self.names)
        if n + 1 <= MOST_PLACES:
            return np.arange(n + 1)
        radius = n // (NEARBY * len(self.in_flight)) if self.needs is not None else 0
        if radius:
            padded = np.pad(self.crossing_bytes[1:-1], radius, constant_values=np.inf)
            minima = np.lib.stride_tricks.sliding_window_view(padded, 2 * radius + 1).min(axis=1)
            places = 1 + np.flatnonzero(self.crossing_bytes[1:-1] <= minima)
            if NEARBY * len(self.in_flight) / 2 <= len(places) <= MOST_PLACES - 2:
                return np.array([0, *places, n])
        groups = np.array_split(np.arange(1, n), MOST_PLACES - 2)
        places_of_groups = [int(group[self.crossing_bytes[group].argmin()]) for group in groups]
        return np.array([0, *places_of_groups, n])

    def near(self, cuts: Sequence[int], blocks: Sequence[Block], number: int, limit: int) -> list[int]:
        """Return other places for one of the cuts, those with the shortest longest stage first; last those for branches."""
        first = cuts[number - 1] + 1 if number else 0
        end = cuts[number + 1] if number + 1 < len(cuts) else len(self.names) - 1
        candidates = set(range(first, end)) - {cuts[number]}
        if self.needs is not None:
            candidates &= set((self._few - 1).tolist())
        options = [place for place in sorted(candidates) if self._differs(place, blocks)]
        ends, places = [0, *(place + 1 for place in cuts), len(self.names)], np.array(options, np.int64)
        left_us = self.own_us(number, blocks[number], ends[number], places + 1)
        right_us = self.own_us(number + 1, blocks[number + 1], places + 1, ends[number + 2])
        fixed_stages = set(range(len(blocks))) - {number, number + 1}
        longest_us = np.maximum(left_us, right_us)
        for i in fixed_stages:
            longest_us = np.maximum(longest_us, self.own_us(i, blocks[i], ends[i], ends[i + 1]))
        nearest = places[longest_us.argsort(kind="stable")].tolist()
        beside_us = self.beside_us[blocks[number + 1].size]
        least_us = LEAST_BESIDE * self.time_us[blocks[number + 1].size][-1]
        branching = [place for place in nearest[limit:] if beside_us[place + 1] > least_us]
        return nearest[:limit] + sorted(branching, key=lambda place: -beside_us[place + 1])[:FEWEST_TRIED]

    def _differs(self, place: int, blocks: Sequence[Block]) -> bool:
        """Return whether a cut at a place isn't just one at the place before: it takes time, or less crosses."""
        if not place:
            return True
        sizes = {block.size for block in blocks}
        is_same_time = all(self.time_us[size][place + 1] == self.time_us[size][place] for size in sizes)
        return not (is_same_time and self.crossing_bytes[place + 1] >= self.crossing_bytes[place])


def _program_order(graph: Graph) -> tuple[list[str], list[int], list[list[str]]]:
    """Return the operators that stages have, the bytes that cross after each of them over all micro-batches, and the
    variables that each of them is the first to use.
    """
    step_names = {op.name for op in graph.step_operators}
    last_use = {
        tensor.name: number
        for number, op in enumerate(graph.operators.values())
        if op.name in step_names
        for _, tensor in op.operands
    }
    names, crossings, first_uses = [], [], []
    alive: dict[str, int] = {}
    variables: set[str] = set()
    for number, op in enumerate(graph.operators.values()):
        if op.name not in step_names or op.type in SOURCES or op.updates is not None:
            continue
        producers = [graph.producers[tensor.name] for _, tensor in op.operands]
        firsts = list(dict.fromkeys(maker.name for maker in producers if maker.is_trainable and maker.name not in variables))
        variables.update(firsts)
        used_later = (tensor for tensor in op.outputs if last_use.get(tensor.name, -1) > number)
        alive.update({tensor.name: tensor.mem_bytes * graph.n_runs(tensor.name) for tensor in used_later})
        alive = {name: n_bytes for name, n_bytes in alive.items() if last_use[name] > number}
        names.append(op.name)
        crossings.append(sum(alive.values()))
        first_uses.append(firsts)
    return names, crossings, first_uses


def _time_up_to(graph: Graph, names: Sequence[str], first_uses: Sequence[list[str]], times: OperatorTimes) -> np.ndarray:
    """Return the time of all operators up to each one, with the updates of the variables used, float64[N + 1]."""
    n, own_us = graph.n_micro_batches, [0.0]
    for name, variables in zip(names, first_uses, strict=True):
        time_us = times.of[name].total(n) if name in times.of else 0.0
        own_us.append(time_us + sum(times.of[variable].total(n) for variable in variables))
    return np.cumsum(own_us)


def _time_beside(names: Sequence[str], first_places: Mapping[str, int], time_us: np.ndarray) -> np.ndarray:
    """Return the time of the operators after each place that need no operator of the batch before it, float64[N + 1]."""
    own_us = np.zeros(len(names) + 1)
    for place, name in enumerate(names):
        if name in first_places:
            own_us[first_places[name]] += time_us[place + 1] - time_us[place]
    totals: np.ndarray = own_us[::-1].cumsum()[::-1]
    return totals
