"""Time where communication runs beside compute: held against a simulated queue, and its frontier against all strategies."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tensoropt.ft import INFEASIBLE, LowerBound, Node, Overlap, Problem, at_true_times, search, search_overlapping
from tensoropt.ft.nonadditive.overlap import UNITS, OverlapPart

from .problems import SHAPES, Costs, build, real_points

N_PLACES = 4


def random_problem(seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    n_nodes, pairs = list(SHAPES.values())[seed % len(SHAPES)]
    sizes = rng.integers(1, 5, n_nodes).tolist()
    costs = Costs(int(rng.choice([5, 100, 10**6])), float(rng.choice([0.0, 0.1])), 0.5)
    return build(rng, sizes, pairs, costs)


def simulated_ns(total_ns: int, overlappable_ns: list[int], computing_ns: list[int]) -> int:
    """A device that computes from the last position to the first, and a link that serves what comes to it in order."""
    device_ns = total_ns - sum(overlappable_ns) - sum(computing_ns)
    link_ns = 0
    for position in reversed(range(len(computing_ns))):
        device_ns += computing_ns[position]
        if overlappable_ns[position]:
            link_ns = max(link_ns, device_ns) + overlappable_ns[position]
    return max(device_ns, link_ns)


def random_overlap(problem: Problem, seed: int) -> Overlap:
    """Parts of the costs, here and there; of a node's time one is overlappable, another computing."""
    rng = np.random.default_rng(seed)

    def part(ns: np.ndarray, share: float) -> OverlapPart:
        feasible = np.where(ns < INFEASIBLE, ns, 0)
        return OverlapPart(
            int(rng.integers(N_PLACES)), np.floor(feasible * rng.uniform(0, share, ns.shape)).astype(np.int64)
        )

    def some(n: int) -> list[int]:
        return np.flatnonzero(rng.random(n) < 0.6).tolist()

    n_nodes, n_edges = len(problem.nodes), len(problem.edges)
    return Overlap(
        {i: part(problem.nodes[i].time_ns, 0.5) for i in some(n_nodes)},
        {i: part(problem.edges[i].time_ns, 1.0) for i in some(n_edges)},
        {i: part(problem.nodes[i].time_ns, 0.5) for i in some(n_nodes)},
    )


def true_times(problem: Problem, overlap: Overlap) -> dict[tuple[int, ...], tuple[int, int]]:
    """Memory and time of every allowed strategy, by the simulation."""
    found = {}
    for states in itertools.product(*(range(node.n_states) for node in problem.nodes)):
        mem_bytes, total_ns = problem.cost(states)
        if max(mem_bytes, total_ns) >= INFEASIBLE:
            continue
        overlappable, computing = [0] * N_PLACES, [0] * N_PLACES
        for node, part in overlap.overlappable.items():
            overlappable[part.position] += int(part.ns[states[node]])
        for number, part in overlap.overlappable_edges.items():
            edge = problem.edges[number]
            overlappable[part.position] += int(part.ns[states[edge.source], states[edge.target]])
        for node, part in overlap.computing.items():
            computing[part.position] += int(part.ns[states[node]])
        found[states] = mem_bytes, simulated_ns(total_ns, overlappable, computing)
    return found


@given(st.integers(0, 10**6))
def test_the_frontier_has_true_times_and_a_bound_below_every_strategy(seed: int) -> None:
    problem = random_problem(seed)
    overlap = random_overlap(problem, seed)
    if math.prod(node.n_states for node in problem.nodes) > 3000:
        return
    true = true_times(problem, overlap)
    if not true:
        return
    found = search_overlapping(problem, overlap)
    points = list(zip(found.mem_bytes.tolist(), found.time_ns.tolist(), strict=True))
    assert points == [true[tuple(strategy)] for strategy in found.strategies.tolist()]
    bound = found.bound or found
    for mem_bytes, time_ns in true.values():
        assert ((bound.mem_bytes <= mem_bytes) & (bound.time_ns <= time_ns)).any()
        if found.exact:
            assert any(mem <= mem_bytes and time <= time_ns for mem, time in points)


@given(st.integers(0, 10**6), st.integers(0, UNITS))
def test_weighted_sums_are_what_they_are_said_to_be(seed: int, share: int) -> None:
    problem = random_problem(seed)
    overlap = random_overlap(problem, seed)
    weighted = overlap.weighted(problem, share)
    rng = np.random.default_rng(seed)
    states = tuple(int(rng.integers(node.n_states)) for node in problem.nodes)
    mem_bytes, total_ns = problem.cost(states)
    if max(mem_bytes, total_ns) >= INFEASIBLE:
        assert max(weighted.cost(states)) >= INFEASIBLE
        return
    overlappable = [(part.position, int(part.ns[states[node]])) for node, part in overlap.overlappable.items()]
    overlappable += [
        (part.position, int(part.ns[states[problem.edges[i].source], states[problem.edges[i].target]]))
        for i, part in overlap.overlappable_edges.items()
    ]
    computing = [(part.position, int(part.ns[states[node]])) for node, part in overlap.computing.items()]

    def overlap_at(position: int) -> int:
        return sum(ns for at, ns in overlappable if at > position) + sum(ns for at, ns in computing if at < position)

    positions = [position for position, _ in overlappable] or [0]
    sums = share * (total_ns - overlap_at(min(positions))) + (UNITS - share) * (total_ns - overlap_at(max(positions)))
    assert weighted.cost(states) == (mem_bytes, sums)
    (overlap_ns,) = overlap.overlap_ns(problem, np.array([states], np.int32))
    assert UNITS * (total_ns - overlap_ns) >= sums


def test_without_anything_to_hide_it_is_the_plain_search() -> None:
    for seed in range(40):
        problem = random_problem(seed)
        if any(not (node.time_ns < INFEASIBLE).any() for node in problem.nodes):
            continue
        nothing = Overlap({}, {}, {})
        try:
            plain = search(problem)
        except ValueError:
            continue
        found = search_overlapping(problem, nothing)
        assert real_points(problem, found) == real_points(problem, plain)
        assert found.exact == plain.exact


def test_a_bound_of_other_times_proves_nothing() -> None:
    """A frontier that was chosen by plain sums keeps its bound when it has its true times."""
    problem = Problem((Node("n", np.array([5]), np.array([100])),), ())
    overlap = Overlap({0: OverlapPart(0, np.array([40]))}, {}, {0: OverlapPart(0, np.array([50]))})
    bound = LowerBound(np.array([5]), np.array([90]), "a test")
    found = replace(search(problem), bound=bound)
    shown = at_true_times(problem, overlap, found, bound.lowered(overlap.most_ns))
    assert not shown.exact and shown.bound is not None and shown.bound.time_ns.tolist() == [50]


def test_more_weights_close_the_gap() -> None:
    """A balanced strategy isn't found, or not proven, with the weights of the ends alone."""
    gaps = []
    for seed in range(60):
        problem = random_problem(seed)
        overlap = random_overlap(problem, seed)
        try:
            found = search_overlapping(problem, overlap)
        except ValueError:
            continue
        gaps.append(found.worst_gap)
    assert np.isfinite(gaps).mean() > 0.5
    assert np.median([gap for gap in gaps if np.isfinite(gap)]) < 0.1
