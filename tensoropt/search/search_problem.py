"""Search a problem for its frontier, without rematerialization and with it.

The search with it starts from what the one without has found, so that it never finds worse (:func:`adopted`). The states of
operators are the same, those of the smaller problem first. The nodes of copies are others with other states; of those that
mean the same, the one is taken that costs the least given the states of its neighbours.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..costs.objectives import MEMORY_TIME, Objectives
from ..ft import Budget, Frontier, InfeasibleError, Problem, search, search_overlapping
from ..ft.frontier import settled
from ..ft.nonadditive.lines import lines_within
from ..ft.nonadditive.local_search import Descent
from ..ft.nonadditive.overlap import Overlap
from ..ft.nonadditive.relaxations import Relaxations
from ..ft.problem import Edge
from ..ft.weighted.lagrangian import Found
from .problem.objectives import problem_for
from .problem.strategy_problem import StrategyProblem, cheapest_state

FIRST_GAP_AGAIN, MOST_POINTS_AGAIN = 0.02, 1000
"""The least gap at which a first search with rematerialization stops, and the most points to which it thins partial
frontiers: its lower bound is that of a weighted sum, so that nearer to it there is often little to gain. While there is time
and a larger gap than is asked for, a second search goes nearer.
"""
MOST_SEARCHES, MAX_SEGMENTS = 32, 8
"""The most searches of relaxations, and the most segments with which there are any. A small problem, of which the first is
exact, has them whatever they take.
"""
FEW_PAIRS, FAR = 1 << 21, 0.04
"""The gap from which lines are looked for in a problem of more pairs of states, where each takes some tenths of a second."""
BY_SUMS = "sums by segment"
SHARE = 0.5
"""The share of the seconds that the search without rematerialization may take where one with it follows, and the share that
is left for changes, and for bounds by segment, where what came before took all seconds.
"""


@dataclass(frozen=True, slots=True)
class ProblemSearch:
    """A search of a model's problems: first of the one without rematerialization, then of the one with it.

    Attributes:
        algorithm: one of ``ft.ALGORITHMS``.
        progress: called with (done, total) now and then.
        budget: the effort for both problems together.
    """

    objectives: Objectives
    algorithm: str
    progress: Callable[[int, int], None] | None
    budget: Budget

    def plain(self, problem: StrategyProblem, is_last: bool = True) -> Frontier:
        """Return the frontier of a problem without rematerialization.

        Args:
            is_last: whether no search with rematerialization may follow, for which time is to be left.
        """
        budget = self.budget if is_last else replace(self.budget, seconds=SHARE * self.budget.seconds)
        return self._found(problem_for(problem, self.objectives), problem.overlap, budget)

    def with_rematerialization(self, frontier: Frontier, seconds: float, rematerializing: StrategyProblem) -> Frontier:
        """Return the frontier of a problem with rematerialization, in its states; no point is above one of ``frontier``.

        Args:
            frontier: the frontier of the problem without, in the states of this one (:func:`adopted`).
            seconds: how long the search for that took, which counts for the budget.
        """
        transient, overlap = rematerializing.transient, rematerializing.overlap
        assert transient is not None
        problem = problem_for(rematerializing, self.objectives)
        start_s = time.monotonic()
        deadline = start_s + self.budget.seconds - seconds

        def searched(charged: Problem, gap: float) -> Frontier:
            left_s, max_points = max(0.0, deadline - time.monotonic()), min(self.budget.max_points, MOST_POINTS_AGAIN)
            limited = replace(self.budget, seconds=left_s, max_points=max_points, gap=gap)
            return self._found(charged, overlap, limited)

        def merge(best: Frontier, result: Frontier) -> Frontier:
            """Return the frontier with the strategies of a search at their true memory, and what changes make of them."""
            points = transient.at_true_memory(problem, result, relaxations.bound)
            best = replace(best, bound=relaxations.bound).with_points(points.mem_bytes, points.time_ns, points.strategies)
            mem, time_ns, strategies = descent.improved(np.concatenate([result.strategies, best.strategies]))
            if overlap is not None and self.objectives == MEMORY_TIME:
                time_ns = time_ns - overlap.overlap_ns(problem, strategies)
            relaxations.know(np.concatenate([result.time_ns, time_ns]), np.concatenate([result.strategies, strategies]))
            return best.with_points(mem, time_ns, strategies)

        repeat = searched(transient.charged(problem), max(self.budget.gap, FIRST_GAP_AGAIN))
        relaxations = Relaxations(problem, transient, repeat.lower_bound(BY_SUMS))
        is_small = repeat.exact and self.algorithm != "exhaustive"
        # The first result always counts, however long it took: changes have their part of the seconds in any case.
        deadline = max(deadline, time.monotonic() + SHARE * self.budget.seconds)
        descent = Descent(problem, transient, math.inf if is_small else deadline)
        counts = {kind: frontier.eliminations[kind] + repeat.eliminations[kind] for kind in frontier.eliminations}
        best = merge(replace(frontier, eliminations=counts), repeat)
        deadline = max(deadline, time.monotonic() + SHARE * self.budget.seconds)
        if not is_small and self._has_lines(rematerializing, best):
            points = Found(best.mem_bytes, best.time_ns, best.strategies)
            lines = lines_within(problem, transient, points, self.budget.gap, deadline)
            relaxations.prove(None, lines.bound)
            best = replace(best, bound=relaxations.bound)
            best = best.with_points(lines.found.mem, lines.found.time, lines.found.strategies)
        if repeat.worst_gap > self.budget.gap < best.worst_gap and 2 * time.monotonic() - start_s <= deadline:
            start_s, repeat = time.monotonic(), searched(transient.charged(problem), self.budget.gap)
            relaxations.prove(None, repeat.lower_bound(BY_SUMS))
            best = merge(best, repeat)
        for _ in range(MOST_SEARCHES if len(transient.segments) <= MAX_SEGMENTS else 0):
            now_s = time.monotonic()
            if best.worst_gap <= self.budget.gap or (not is_small and 2 * now_s - start_s > deadline):
                break
            relaxation = relaxations.next(best, self.budget.gap)
            if relaxation is None:
                break
            start_s = now_s
            try:
                repeat = searched(relaxations.relaxed(relaxation), self.budget.gap)
            except InfeasibleError:  # all strategies are above the capped level
                relaxations.prove(relaxation, None)
                best = settled(replace(best, bound=relaxations.bound))
            else:
                relaxations.prove(relaxation, repeat.lower_bound(BY_SUMS))
                best = merge(best, repeat)
        return best

    def _has_lines(self, problem: StrategyProblem, best: Frontier) -> bool:
        """Return whether lines may bring a frontier nearer to what is proven."""
        transient = problem.transient
        if transient is None or problem.overlap is not None or len(transient.segments) > MAX_SEGMENTS:
            return False
        n_pairs = sum(edge.mem_bytes.size for edge in problem.problem.edges)
        return not transient.has_negative and best.worst_gap > (self.budget.gap if n_pairs <= FEW_PAIRS else FAR)

    def _found(self, problem: Problem, overlap: Overlap | None, budget: Budget) -> Frontier:
        if overlap is None or self.objectives != MEMORY_TIME:
            return search(problem, self.algorithm, self.progress, budget)
        return search_overlapping(problem, overlap, self.algorithm, self.progress, budget)


@dataclass(frozen=True)
class _Meaning:
    """The meanings that P strategies give to a node that isn't an operator.

    Attributes:
        of_strategy: the number of the meaning that each strategy has, int[P].
        states: for each meaning, the states of the node that have it, bool[meanings, K].
    """

    node: int
    of_strategy: np.ndarray
    states: np.ndarray


_Adjacent = tuple[Edge, np.ndarray | None]
"""An edge at a node, and its transient bytes in the shape of its costs; None where there are none."""


def adopted(target: StrategyProblem, source: StrategyProblem, strategies: np.ndarray) -> np.ndarray:
    """Return strategies of ``source``, int32[P, its nodes], as states of ``target``, int32[P, nodes].

    Args:
        source: a problem of the same graph, mesh and space; ``target`` has all of its choices.
    """
    problem = target.problem
    adopted_states = np.zeros((len(strategies), len(problem.nodes)), np.int32)
    adopted_states[:, : len(target.nodes)] = strategies[:, : len(target.nodes)]
    edges: dict[int, list[_Adjacent]] = defaultdict(list)
    for number, edge in enumerate(problem.edges):
        adjacent = edge, _transient_bytes(target, number)
        edges[edge.source].append(adjacent)
        edges[edge.target].append(adjacent)
    for meaning in _meanings(target, source, strategies):
        node = meaning.node
        neighbours = [edge.target if edge.source == node else edge.source for edge, _ in edges[node]]
        context = np.concatenate([adopted_states[:, neighbours], meaning.of_strategy[:, None]], axis=1)
        first, member = _distinct_rows(context)
        # Where nothing is resharded, saving and regathering a copy are the same, and one of them may be missing.
        any_state = np.ones(problem.nodes[node].n_states, bool)
        states = [
            cheapest_state(problem, node, edges[node], (meaning.states[kind], any_state), adopted_states[row])
            for row, kind in ((row, meaning.of_strategy[row]) for row in first)
        ]
        adopted_states[:, node] = np.array(states, np.int32)[member]
    return adopted_states


def _distinct_rows(rows: np.ndarray) -> tuple[list[int], list[int]]:
    """Return the index of the first of each kind of equal rows, and the kind of each row."""
    # There are few kinds, so that a dictionary takes less time than NumPy's ``unique``, which sorts all rows.
    keys = np.ascontiguousarray(rows).view(f"V{rows.itemsize * rows.shape[1]}").reshape(-1).tolist()
    numbers: dict[bytes, int] = {}
    first, kinds = list[int](), list[int]()
    for row, key in enumerate(keys):
        number = numbers.setdefault(key, len(numbers))
        if number == len(first):
            first.append(row)
        kinds.append(number)
    return first, kinds


def _meanings(target: StrategyProblem, source: StrategyProblem, strategies: np.ndarray) -> Iterator[_Meaning]:
    """Yield, for each node of a copy, what the strategies mean by it.

    For a shared copy that is its operand sharding and whether it is saved or regathered; for another copy, only whether it
    is saved or regathered.
    """
    shared_before = {copy.tensor.name: copy for copy in source.shared}
    source_choices = {choice.copy: choice for choice in source.choices}
    regathered, regathered_before = (
        {choice.node: choice.is_regathered for choice in problem.choices} for problem in (target, source)
    )
    shared = [copy for copy in target.shared if copy.node >= len(target.nodes)]
    for copy in shared:
        source_copy = shared_before[copy.tensor.name]
        number = {code: i for i, code in enumerate(dict.fromkeys(copy.shardings.codes.tolist()))}
        codes = (version.shardings.in_numbers(copy.shardings.numbers).codes.tolist() for version in (source_copy, copy))
        source_ids, target_ids = (np.array([number.get(code, -1) for code in column], np.intp) for column in codes)
        is_requested = source_ids[:, None] == target_ids
        is_regathered = regathered.get(copy.node, np.zeros(len(copy.shardings), bool))
        was_regathered = regathered_before.get(source_copy.node, np.zeros(len(source_copy.shardings), bool))
        yield _Meaning(copy.node, strategies[:, source_copy.node], is_requested & (is_regathered == was_regathered[:, None]))
    for choice in target.choices:
        if all(choice.node != copy.node for copy in shared):
            meaning_of_strategy = np.zeros(len(strategies), np.intp)
            if choice.copy in source_choices:
                states = strategies[:, source_choices[choice.copy].node]
                meaning_of_strategy = source_choices[choice.copy].is_regathered[states].astype(np.intp)
            yield _Meaning(choice.node, meaning_of_strategy, np.stack([~choice.is_regathered, choice.is_regathered]))


def _transient_bytes(problem: StrategyProblem, edge: int) -> np.ndarray | None:
    """Return an edge's transient bytes, summed over all rematerialization segments; None where there are none."""
    segments = problem.transient.segments if problem.transient is not None else ()
    parts = [segment.edges[edge] for segment in segments if edge in segment.edges]
    # Mostly there is one part, an array that equal layers share: a sum would be a new one for each edge.
    return parts[0] if len(parts) == 1 else np.sum(parts, axis=0) if parts else None
