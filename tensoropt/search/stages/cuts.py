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
from ...program.schedule import ONE_FORWARD_ONE_BACKWARD, least_in_flight
from ...sharding.branches import branch_starts, earliest_needed
from ...sharding.stages import Stages
from .needs import FULL, StageNeeds
from .placement import elsewhere, why_not_placed
from .submeshes import Block, Choices
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
    known: dict[tuple[str, ...], Stages] | None = None,
    needs: StageNeeds | None = None,
    limit_bytes: int | None = None,
) -> Cut:
    """Return a model cut such that a step is predicted to take the least time of the cuts that are tried.

    Args:
        choices: for each stage the devices that it may have. Each device has one stage, or several that are interleaved.
        placed: the devices of the operators that a user placed, by name.
        schedule: the order of the step's passes, see :func:`.tried_orders`.
        known: cuts that were tried before, by the operators that stages end with; those tried now are added.
        needs: what stages need.
        limit_bytes: the memory limit per device, to which they then keep by rematerializing.

    Raises:
        InputError: there are fewer places to cut at than stages need, or none with which operators are as they are placed.
    """
    places = _Places.of(times, choices, placed)
    if needs is not None and limit_bytes is not None:
        places = replace(places, needs=needs, limit=FULL * limit_bytes)
    at, blocks = places.shortest_longest(choices)
    sizes = [block.size for block in blocks]
    of_stages = times.of(sizes)
    known = {} if known is None else known

    def stages_at(at: Sequence[int]) -> Stages:
        ends = tuple(places.names[place] for place in at)
        if ends not in known:
            known[ends] = Stages(times.whole, ends)
        return known[ends]

    def predicted_us(at: Sequence[int]) -> float:
        stages = stages_at(at)
        try:
            if not all(places.variables & members for members in stages.members):
                return math.inf
            if why_not_placed(stages, blocks, placed) is not None:
                return math.inf
            again_us = places.again_us(at, blocks)
            return estimated_us(stages, times.hardware, blocks, of_stages, schedule, again_us)
        except InputError:
            return math.inf

    least_us = predicted_us(at)
    for number in range(len(at)):
        for place in places.near(at, blocks, number, max(FEWEST_TRIED, MOST_TRIED // len(at))):
            moved = [*at[:number], place, *at[number + 1 :]]
            time_us = predicted_us(moved)
            if time_us < least_us:
                at, least_us = moved, time_us
    stages = stages_at(at)
    why = why_not_placed(stages, blocks, placed) if placed else None
    if why is not None:
        raise InputError(why)
    return Cut(stages, blocks, least_us, places.beside, needs)


@dataclass(frozen=True, eq=False)
class _Places:
    """The places where a model may be cut: after each of N operators, in program order. Arrays begin with none of them.

    Attributes:
        names: the operators.
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
        blocks = {block for of_stage in choices for block in of_stage}
        sizes, n_devices = sorted({block.size for block in blocks}), max(block.end for block in blocks)
        is_interleaved = any(block.first == 0 for of_stage in choices[1:] for block in of_stage)
        average = sizes[0] if is_interleaved else max(1, n_devices // len(choices))
        pairs = ((Block(block.first - average, average), Block(block.first, average)) for block in blocks if block.first)
        rates = {after.first: way_back_and_forth_us(times.hardware, before, after) for before, after in pairs}
        pair = Block(n_devices - average, average), Block(0, average)
        back_us = way_back_and_forth_us(times.hardware, *pair) if is_interleaved else 0.0
        graph = times[sizes[0]].graph
        names, crossings, used_first = _program_order(graph)
        time_us = {size: _time_up_to(graph, names, used_first, times[size]) for size in sizes}
        trained = np.cumsum([0, *(len(each) for each in used_first)])
        variables = frozenset(name for each in used_first for name in each)
        us_per_byte = {0: back_us, n_devices: back_us, **rates}
        is_branching = len(branch_starts(graph)) > 1
        needed = earliest_needed(graph, {name: place for place, name in enumerate(names)}) if is_branching else {}
        beside_us = {size: np.minimum(each, _time_beside(names, needed, each)) for size, each in time_us.items()}
        in_flight = least_in_flight(len(choices), graph.n_micro_batches)
        crossing_bytes = np.array([0.0, *crossings])
        return cls(names, time_us, crossing_bytes, us_per_byte, trained, variables, placed, beside_us, in_flight)

    def own_us(self, stage: int, block: Block, start: np.ndarray | int, end: np.ndarray | int) -> np.ndarray:
        """Return the time of a stage on some devices, of the operators between two places, with what crosses at its ends.

        It is infinite where one of them is placed on others.
        """
        passes = self.time_us[block.size]
        before = self.us_per_byte[block.first] * self.crossing_bytes[start]
        own: np.ndarray = passes[end] - passes[start] + before + self.us_per_byte[block.end] * self.crossing_bytes[end]
        if self.needs is not None:
            own = self.needs.own_us(own, block.size, start, end, self.in_flight[stage], self.limit)
        if not self.placed:
            return own
        others = elsewhere(self.names, self.placed, block)
        return np.where(others[end] > others[start], np.inf, own)

    def all_us(self, at: Sequence[int], blocks: Sequence[Block]) -> list[float]:
        """Return the time of each stage."""
        ends = [0, *(place + 1 for place in at), len(self.names)]
        return [float(self.own_us(i, block, ends[i], ends[i + 1])) for i, block in enumerate(blocks)]

    def again_us(self, at: Sequence[int], blocks: Sequence[Block]) -> list[float]:
        """Return for each stage how much longer it takes to keep to the limit."""
        if self.needs is None:
            return []
        with_again, without = self.all_us(at, blocks), replace(self, needs=None).all_us(at, blocks)
        return [one - other for one, other in zip(with_again, without, strict=True)]

    def shortest_longest(self, choices: Choices) -> tuple[list[int], tuple[Block, ...]]:
        """Return the cuts, and the stages' devices, with which the longest stage takes the least time.

        O(P^2) for each of a stage's choices, with P places (:meth:`_few`).

        Raises:
            InputError: there are fewer places to cut at than stages need.
        """
        found = self._shortest_longest_at(self._few, choices)
        if found is None and len(self.names) >= MOST_PLACES:
            # Operators that are placed, or the only variables, may be next to each other.
            found = self._shortest_longest_at(np.arange(len(self.names) + 1), choices)
        if found is None:
            where = " where operators are placed" if self.placed else ""
            raise InputError(
                f"the model can't be cut into {len(choices)} stages{where}: each needs a variable that is trained, and the "
                f"model has {self.trained[-1]}; ask for fewer stages{', or place fewer operators' if self.placed else ''}"
            )
        return found

    def _shortest_longest_at(self, few: np.ndarray, choices: Choices) -> tuple[list[int], tuple[Block, ...]] | None:
        """Return what :meth:`shortest_longest` does for cuts at some places; None if none of them do."""
        trains = self.trained[few][None] > self.trained[few][:, None]
        known: dict[tuple[float, ...], np.ndarray] = {}

        def own_us(stage: int, block: Block) -> np.ndarray:
            """Return the time of a stage from each place (row) to each (column)."""
            count = 0 if self.needs is None else self.in_flight[stage]
            ends_us = self.us_per_byte[block.first], self.us_per_byte[block.end]
            key = (count, block.size, *ends_us, *(block if self.placed else ()))
            if key not in known:
                known[key] = np.where(trains, self.own_us(stage, block, few[:, None], few[None]), np.inf)
            return known[key]

        n_devices = max(block.end for of_stage in choices for block in of_stage)
        best = {0: np.where(few == 0, 0.0, np.inf)}  # by the device that the next stage begins with
        steps: list[tuple[dict[int, np.ndarray], dict[int, list[tuple[Block, np.ndarray]]]]] = []
        for stage, of_stage in enumerate(choices):
            found: dict[int, list[tuple[Block, np.ndarray]]] = {}
            for block in of_stage:
                if block.first in best:
                    least = np.maximum(best[block.first][:, None], own_us(stage, block)).min(axis=0)
                    found.setdefault(block.end % n_devices, []).append((block, least))
            steps.append((best, found))
            best = {end: np.min([least for _, least in each], axis=0) for end, each in found.items()}
        ((used, least),) = best.items()
        if math.isinf(least[-1]):
            return None
        at, cuts, blocks = len(few) - 1, list[int](), list[Block]()
        for stage, (before, found) in reversed([*enumerate(steps)]):
            block, _ = found[used][int(np.argmin([least[at] for _, least in found[used]]))]
            at, used = int(np.maximum(before[block.first], own_us(stage, block)[:, at]).argmin()), block.first
            cuts.insert(0, int(few[at]) - 1)
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
        beside = n // (NEARBY * len(self.in_flight)) if self.needs is not None else 0
        if beside:
            around = np.pad(self.crossing_bytes[1:-1], beside, constant_values=np.inf)
            least = np.lib.stride_tricks.sliding_window_view(around, 2 * beside + 1).min(axis=1)
            found = 1 + np.flatnonzero(self.crossing_bytes[1:-1] <= least)
            if NEARBY * len(self.in_flight) / 2 <= len(found) <= MOST_PLACES - 2:
                return np.array([0, *found, n])
        inner = np.array_split(np.arange(1, n), MOST_PLACES - 2)
        least = [int(each[self.crossing_bytes[each].argmin()]) for each in inner]
        return np.array([0, *least, n])

    def near(self, at: Sequence[int], blocks: Sequence[Block], number: int, most: int) -> list[int]:
        """Return other places for one of the cuts, those with the shortest longest stage first; last those for branches."""
        first = at[number - 1] + 1 if number else 0
        end = at[number + 1] if number + 1 < len(at) else len(self.names) - 1
        possible = set(range(first, end)) - {at[number]}
        if self.needs is not None:
            possible &= set((self._few - 1).tolist())
        found = [place for place in sorted(possible) if self._differs(place, blocks)]
        ends, places = [0, *(place + 1 for place in at), len(self.names)], np.array(found, np.int64)
        before = self.own_us(number, blocks[number], ends[number], places + 1)
        after = self.own_us(number + 1, blocks[number + 1], places + 1, ends[number + 2])
        unchanged = set(range(len(blocks))) - {number, number + 1}
        longest_us = np.maximum(before, after)
        for i in unchanged:
            longest_us = np.maximum(longest_us, self.own_us(i, blocks[i], ends[i], ends[i + 1]))
        others = places[longest_us.argsort(kind="stable")].tolist()
        beside_us = self.beside_us[blocks[number + 1].size]
        least_us = LEAST_BESIDE * self.time_us[blocks[number + 1].size][-1]
        branching = [place for place in others[most:] if beside_us[place + 1] > least_us]
        return others[:most] + sorted(branching, key=lambda place: -beside_us[place + 1])[:FEWEST_TRIED]

    def _differs(self, place: int, blocks: Sequence[Block]) -> bool:
        """Return whether a cut at a place isn't just one at the place before: it takes time, or less crosses."""
        if not place:
            return True
        sizes = {block.size for block in blocks}
        same_time = all(self.time_us[size][place + 1] == self.time_us[size][place] for size in sizes)
        return not (same_time and self.crossing_bytes[place + 1] >= self.crossing_bytes[place])


def _program_order(graph: Graph) -> tuple[list[str], list[int], list[list[str]]]:
    """Return the operators that stages have, the bytes that cross after each of them over all micro-batches, and the
    variables that each of them is the first to use.
    """
    in_step = {op.name for op in graph.step_operators}
    last_use = {
        tensor.name: number
        for number, op in enumerate(graph.operators.values())
        if op.name in in_step
        for _, tensor in op.operands
    }
    names, crossings, used_first = [], [], []
    alive: dict[str, int] = {}
    used: set[str] = set()
    for number, op in enumerate(graph.operators.values()):
        if op.name not in in_step or op.type in SOURCES or op.updates is not None:
            continue
        producers = [graph.producers[tensor.name] for _, tensor in op.operands]
        new = list(dict.fromkeys(each.name for each in producers if each.is_trainable and each.name not in used))
        used.update(new)
        used_later = (tensor for tensor in op.outputs if last_use.get(tensor.name, -1) > number)
        alive.update({tensor.name: tensor.mem_bytes * graph.n_runs(tensor.name) for tensor in used_later})
        alive = {name: n_bytes for name, n_bytes in alive.items() if last_use[name] > number}
        names.append(op.name)
        crossings.append(sum(alive.values()))
        used_first.append(new)
    return names, crossings, used_first


def _time_up_to(graph: Graph, names: Sequence[str], used_first: Sequence[list[str]], times: OperatorTimes) -> np.ndarray:
    """Return the time of all operators up to each one, with the updates of the variables used, float64[N + 1]."""
    n, own_us = graph.n_micro_batches, [0.0]
    for name, variables in zip(names, used_first, strict=True):
        time_us = times.of[name].total(n) if name in times.of else 0.0
        own_us.append(time_us + sum(times.of[each].total(n) for each in variables))
    return np.cumsum(own_us)


def _time_beside(names: Sequence[str], needed: Mapping[str, int], time_us: np.ndarray) -> np.ndarray:
    """Return the time of the operators after each place that need no operator of the batch before it, float64[N + 1]."""
    own_us = np.zeros(len(names) + 1)
    for place, name in enumerate(names):
        if name in needed:
            own_us[needed[name]] += time_us[place + 1] - time_us[place]
    found: np.ndarray = own_us[::-1].cumsum()[::-1]
    return found
