"""The points that a search found for a model, with what makes plans of them: the problem, and the costs."""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ...common.process.progress import Progress
from ...common.words import counted
from ...costs.objectives import MEMORY_TIME, Objectives, StrategyCosts
from ...costs.operator_costs import OperatorCosting
from ...ft import Frontier
from ...ft.pareto import reduce_unsorted
from ...ft.problem import INFEASIBLE
from ...plan.build import complete_configs, cost_entries, planned_operators
from ...plan.points import CostedPoints
from ...plan.record import PlannedOperator, PlannedResharding
from ...plan.stage_plan import StagePlan
from ...profiling.hardware import Hardware
from ...program.fast_peak import Peaks
from ...program.memory.liveness import Instruction, Peak, peak_of_program
from ...program.memory.pass_memory import PassMemory
from ...program.memory.peak import instructions_of
from ...program.simulator import Network, StepActions, network_of, step_graph
from ...program.simulator.timeline import StepTimeline, timeline_of
from ...program.stage_ends import StageEnds
from ...reschedule.mesh import Mesh
from ...sharding.model import Model
from ...sharding.resharding import PathFinder
from ...sharding.stages import StageModel
from ..problem.objectives import costs_of
from ..problem.strategy_problem import StrategyProblem
from .point_peaks import PeakCounter

LEAST_REPLAYED, MOST_OPERATORS_REPLAYED = 16, 6_000
MOST_COUNTED, MOST_OPERATORS_COUNTED, MOST_OF_DEEP_MODELS = 1_200, 1_000_000, 3_000_000
"""Of a search's points at most so many have their peaks counted, or those with so many operators together if they are more:
a second or two. Of a deep model they have at most the last number of operators together: that many are nearer to each other
than to what is proven. Where kernels can't count they are replayed, and fewer.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Strategies in any order, int32[P, nodes], with their costs, int64[P]."""

    mem_bytes: np.ndarray
    time_ns: np.ndarray
    strategies: np.ndarray

    @classmethod
    def of(cls, frontier: Frontier) -> Candidates:
        return cls(frontier.mem_bytes, frontier.time_ns, frontier.strategies)

    def take(self, indices: np.ndarray) -> Candidates:
        return Candidates(self.mem_bytes[indices], self.time_ns[indices], self.strategies[indices])

    def with_(self, extras: Candidates) -> Candidates:
        costs = ((getattr(self, name), getattr(extras, name)) for name in ("mem_bytes", "time_ns", "strategies"))
        return Candidates(*map(np.concatenate, costs))


@dataclass(frozen=True, eq=False, repr=False)
class ModelFrontier(CostedPoints):
    """All Pareto-minimal points of a model at one parallelism, as a search found them, with what makes plans of them.

    Attributes:
        model: the model, with the micro-batches of the search.
        hardware: the hardware that the costs are for.
        built: the problem that was searched, and what its states mean.
        seconds_by_phase: the seconds of each phase: ``costs``, ``search`` and ``peaks``.
        note: a sentence on how the points were found; may be empty.
        objectives: the two costs that were searched.
        is_interrupted: whether Ctrl-C ended the search, which then kept what it had found.
        searched: all points that the search found, minimal in the objectives, where ``found`` has only those of them that
            are minimal in peak memory and time; None where ``found`` has all.
        counter: the peaks that were counted so far.
    """

    model: Model
    hardware: Hardware
    built: StrategyProblem
    costing: OperatorCosting
    found: Frontier
    seconds_by_phase: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    objectives: Objectives = MEMORY_TIME
    is_interrupted: bool = False
    searched: Frontier | None = None
    counter: PeakCounter | None = None
    # What was computed of the points; a copy with other notes shares it.
    _peaks: dict[int, Peak] = field(default_factory=dict)
    _simulated: dict[int, int] = field(default_factory=dict)

    @property
    def mesh(self) -> Mesh:
        return self.built.mesh

    @cached_property
    def costs(self) -> StrategyCosts:
        """The costs of all points in memory, time, compute and network, whatever the objectives."""
        return costs_of(self.built, self.found, self.objectives)

    def stage(self, point: int, has_rows: bool = True) -> StagePlan:
        """Return a point's plan of the frontier's model as the only stage of a plan, without its peak, with rows or not."""
        costs = self.costs
        operators, reshardings = self._rows(point) if has_rows else ((), ())
        return StagePlan(
            mesh=self.mesh,
            devices=tuple(range(self.mesh.n_devices)),
            operators=operators,
            reshardings=reshardings,
            sum_bytes=int(costs.mem_bytes[point]),
            time_us=int(costs.time_ns[point]) / 1e3,
            compute_time_us=int(costs.compute_ns[point]) / 1e3,
            model_digest=self.model.graph.full_batch.digest,
            frontier=self,
            point=point,
            overlap_time_us=int(costs.overlap_ns[point]) / 1e3,
        )

    def _rows(self, point: int) -> tuple[tuple[PlannedOperator, ...], tuple[PlannedResharding, ...]]:
        costing = self.costing
        view = self.model.view(complete_configs(self.model, self.built.strategy(self.found.strategies[point]), costing))
        path_finder = PathFinder(costing.reshardings.steps)
        reshardings = (entry.planned(path_finder) for entry in cost_entries(view, costing))
        return tuple(planned_operators(view, costing)), tuple(row for row in reshardings if row is not None)

    @cached_property
    def _path_finder(self) -> PathFinder:
        """The path finder of all points, which have most of their reshardings in common."""
        return PathFinder(self.costing.reshardings.steps)

    def peak(self, point: int) -> Peak:
        """Return the peak memory of a point's plan."""
        if point not in self._peaks:
            self._peaks[point] = peak_of_program(self.program(point))
        return self._peaks[point]

    def remember_peak(self, point: int, peak: Peak) -> None:
        """Keep the peak of a point whose step was replayed elsewhere, so that it isn't replayed again."""
        self._peaks[point] = peak

    def program(self, point: int) -> list[Instruction]:
        """Return the step of a point's plan as a program on buffers; see :mod:`...program.memory.peak`."""
        return instructions_of(self._counter.view(self.found.strategies[point]), self.costing, self._path_finder)

    def pass_memory(self, points: np.ndarray, ends: StageEnds) -> PassMemory:
        """Return the memory of a stage's passes under points; see :func:`...program.memory.pass_memory.pass_memory`."""
        return self._counter.passes_of(self.found.strategies[points], ends)

    def peaks_of(self, points: np.ndarray) -> np.ndarray:
        """Return the bytes of :meth:`peak` of some points, int64[K]."""
        return self._counter.peaks_of(self.found.strategies[points])

    @property
    def counts_quickly(self) -> bool:
        """Return whether compiled kernels can count the peaks of these points."""
        return self._counter.peaks.is_quick

    @cached_property
    def _counter(self) -> PeakCounter:
        return self.counter or PeakCounter(self.model, self.built, Peaks(self.model, self.costing, self._path_finder))

    def of_alike(self, model: Model, hardware: Hardware, costing: OperatorCosting) -> ModelFrontier:
        """Return the frontier as that of a model that differs from its own at most in names; peaks are counted for both."""
        problem = self.built.of_alike(self.model.graph, model.graph)
        peaks = Peaks(model, costing, PathFinder(costing.reshardings.steps))
        counter = PeakCounter(model, problem, peaks, self._counter.known, self._counter.known_passes)
        return replace(
            self, model=model, hardware=hardware, built=problem, costing=costing, counter=counter, seconds_by_phase={},
            _peaks={}, _simulated={},
        )  # fmt: skip

    @property
    def certified(self) -> Frontier:
        """All points that the search found, minimal in the objectives, with what is proven of them."""
        return self.searched or self.found

    @cached_property
    def peaks(self) -> np.ndarray:
        """The bytes of :meth:`peak` of all points, int64[P]."""
        return self._counter.peaks_of(self.found.strategies)

    def peak_bytes(self, point: int) -> int:
        """Return the bytes of :meth:`peak`, without counting those of other points."""
        return int(self.peaks_of(np.array([point]))[0])

    def of_least_peaks(self, progress: Progress | None = None, extras: Candidates | None = None) -> ModelFrontier:
        """Return the points of which no other one has both a smaller peak and less time.

        These are in one order by memory, by peak and by time. Where memory isn't what was searched, all points stay. Of very
        many points (MOST_COUNTED) those nearest to others are left out.

        Args:
            extras: further strategies; those that beat a point in peak and time become points.
        """
        points = Candidates.of(self.found)
        max_points = max(LEAST_REPLAYED, MOST_OPERATORS_REPLAYED // self.built.n_operators)
        if self.counts_quickly:
            n = self.built.n_operators
            max_points = max(MOST_OPERATORS_COUNTED // n, min(MOST_COUNTED, MOST_OF_DEEP_MODELS // n))
        points = points.take(spread(points.mem_bytes, points.time_ns, max_points))
        has_passes = isinstance(self.model, StageModel) and self.model.graph.micro_batching is not None
        if has_passes or self.objectives != MEMORY_TIME:  # the peaks of passes depend on their order
            return self._of(points)
        pool = points if extras is None else points.with_(extras)
        peaks = self._counter.peaks_of(pool.strategies, progress)
        mem, time_ns, n_own = pool.mem_bytes, pool.time_ns, len(points.mem_bytes)
        minimal = least_peaks(peaks[:n_own], mem[:n_own], time_ns[:n_own])
        winners = n_own + _that_beat(peaks[n_own:], time_ns[n_own:], peaks[minimal], time_ns[minimal])
        finalists = np.concatenate([np.arange(n_own), winners])
        return self._of(pool.take(finalists[least_peaks(peaks[finalists], mem[finalists], time_ns[finalists])]))

    def take(self, points: Sequence[int]) -> ModelFrontier:
        """Return some of the points."""
        return self._of(Candidates.of(self.found).take(np.array(points)))

    def _of(self, points: Candidates) -> ModelFrontier:
        """Return a part of what was searched."""
        found = replace(self.found, mem_bytes=points.mem_bytes, time_ns=points.time_ns, strategies=points.strategies)
        return replace(self, found=found, searched=self.certified, counter=self._counter, _peaks={}, _simulated={})

    def joined(self, baselines: Iterable[ModelFrontier], progress: Progress | None = None) -> ModelFrontier:
        """Return the points of least peaks and times of the frontier and of baselines; see :meth:`of_least_peaks`.

        So no baseline beats a point, but by strategies that the frontier's space doesn't have: they stay out, and so do all
        where memory and time aren't what was searched.
        """
        problem, states_of_strategies = self.built, []
        for baseline in baselines if self.objectives == MEMORY_TIME else ():
            for states in baseline.found.strategies:
                with contextlib.suppress(ValueError):  # the strategy isn't in the space
                    states_of_strategies.append(problem.states_of(baseline.built.strategy(states)))
        costs = np.array([problem.problem.cost(states.tolist()) for states in states_of_strategies], np.int64).reshape(-1, 2)
        is_possible = (costs < INFEASIBLE).all(axis=1)
        if not is_possible.any():
            return self.of_least_peaks(progress)
        strategies, (mem, time_ns) = np.array(states_of_strategies, np.int32)[is_possible], costs[is_possible].T
        extras = Candidates(mem + problem.missing_bytes(strategies), time_ns - problem.overlap_ns(strategies), strategies)
        certified = self.certified.with_points(extras.mem_bytes, extras.time_ns, extras.strategies)
        joint = replace(self, found=certified, searched=None, counter=self._counter, _peaks={}, _simulated={})
        return joint.of_least_peaks(progress, extras.with_(Candidates.of(self.found)))

    @cached_property
    def _simulator(self) -> tuple[Network, StepActions]:
        return network_of(self.hardware, self.mesh), StepActions(self.costing, self._path_finder)

    def simulated_ns(self, point: int) -> int:
        """Return the time of a point's step as it is simulated on the hardware, in nanoseconds.

        Raises:
            InputError: the model has several passes, which can't be simulated.
        """
        if point not in self._simulated:
            self._simulated[point] = self.timeline(point).makespan_ns
        return self._simulated[point]

    def timeline(self, point: int) -> StepTimeline:
        """Return a point's step as it is simulated on the hardware.

        Raises:
            InputError: the model has several passes, which can't be simulated.
        """
        view = self.model.view(self.built.strategy(self.found.strategies[point]))
        network, actions = self._simulator
        graph = step_graph(view, self._path_finder)
        return timeline_of(view.graph.producers, graph, actions.chains(view, graph.nodes), network)

    @property
    def headline(self) -> str:
        """The search in words: its size and its exactness."""
        problem, certified = self.built.problem, self.certified
        n_points = counted(len(self.found), "point")
        n_points += "" if self.objectives == MEMORY_TIME else f" of {' and '.join(self.objectives)}"
        kinds = ", ".join(f"{count} {kind}" for kind, count in certified.eliminations.items() if count)
        slices = f", {self.model.graph.n_micro_batches} micro-batches" if self.model.graph.n_micro_batches > 1 else ""
        return (
            f"{n_points} on {counted(self.mesh.n_devices, 'device')} {self.mesh}{slices}: "
            f"{counted(self.built.n_operators, 'operator')} in {counted(len(self.built.nodes), 'node')}, "
            f"{counted(self.built.n_configs, 'config')}, {counted(len(problem.edges), 'edge')}; "
            f"eliminations: {kinds or 'none'}; {certified.certificate}; space {self.built.space}"
        )


def spread(mem: np.ndarray, time_ns: np.ndarray, limit: int) -> np.ndarray:
    """Return the indices of at most ``limit`` points of a frontier, both ends among them; all if there aren't more.

    Points are by ascending memory and descending time. Along the frontier, by factors of memory or of time, whichever is
    larger, one point of each part of equal length stays; the parts are as short as the number of points allows.
    """
    if len(mem) <= limit:
        return np.arange(len(mem))
    steps = np.maximum(np.diff(np.log(np.maximum(mem, 1))), -np.diff(np.log(np.maximum(time_ns, 1))))
    position = np.concatenate([[0.0], np.cumsum(steps)]) / max(float(steps.sum()), 1e-300)

    def firsts(n_parts: int) -> np.ndarray:
        return np.union1d(np.flatnonzero(np.diff(np.floor(position * n_parts), prepend=-1.0)), [len(mem) - 1])

    low, high = 1, 1 << 40
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if len(firsts(middle)) <= limit else (low, middle)
    return firsts(low)


def _that_beat(peaks: np.ndarray, time_ns: np.ndarray, peaks_beaten: np.ndarray, times_beaten: np.ndarray) -> np.ndarray:
    """Return the indices of the strategies that beat at least one of some points in peak and time."""
    peak, time = peaks[:, None] - peaks_beaten, time_ns[:, None] - times_beaten
    return np.flatnonzero(((peak <= 0) & (time <= 0) & (peak + time < 0)).any(axis=1))


def least_peaks(peaks: np.ndarray, mem: np.ndarray, time_ns: np.ndarray) -> np.ndarray:
    """Return the indices of the points that no other one beats in peak and time, by ascending peak and memory.

    A strategy of more memory may have a smaller peak, so that not all of these need be in one order. Then as few as
    possible are left out: not the fastest, and the one of the smallest peak only if it has more memory than the fastest.
    """
    minimal = reduce_unsorted(peaks, time_ns)
    smaller = minimal[mem[minimal] < mem[minimal[-1]]]
    smallest = smaller[smaller == minimal[0]]
    middle = smaller[mem[smaller] > mem[smallest].max(initial=-1)]
    return np.concatenate([smallest, middle[longest_ascending(mem[middle].tolist())], minimal[-1:]])


def longest_ascending(values: Sequence[int]) -> list[int]:
    """Return the indices of a longest strictly ascending subsequence, ascending."""
    last_values: list[int] = []  # of subsequences of each length, the least last value
    last: list[int] = []  # and its index
    predecessors: list[int] = []
    for i, value in enumerate(values):
        length = bisect_left(last_values, value)
        predecessors.append(last[length - 1] if length else -1)
        last_values[length : length + 1] = [value]
        last[length : length + 1] = [i]
    indices, i = [], last[-1] if last else -1
    while i >= 0:
        indices.append(i)
        i = predecessors[i]
    return indices[::-1]
