"""Searches that compute once what repeats in a problem find what searches find that compute it for each part."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from helpers.large import first

from tensoropt.ft import INFEASIBLE, Edge, InfeasibleError, Node, Problem, search
from tensoropt.ft.elimination import table_graph
from tensoropt.ft.elimination.tracking import Limits, Tracked, track
from tensoropt.ft.interning import Interned, interned
from tensoropt.ft.tables.table import Table
from tensoropt.ft.tables.thinning import Thinning
from tensoropt.ft.weighted import elimination_plan
from tensoropt.ft.weighted.weighted_search import WeightedSearch

from .problems import real_points

LIMITS = (3, 12, 1000)
"""Costs below a small limit give many ties."""


def apart(problem: Problem) -> Problem:
    """Return the problem with no two arrays as one object."""
    nodes = (Node(node.name, node.mem_bytes.copy(), node.time_ns.copy()) for node in problem.nodes)
    edges = (Edge(edge.source, edge.target, edge.mem_bytes.copy(), edge.time_ns.copy()) for edge in problem.edges)
    return Problem(tuple(nodes), tuple(edges))


@contextmanager
def unfolded() -> Iterator[None]:
    """Let searches compute everything for each part of a problem by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["tensoropt.ft.search"], "interned", apart)
        patch.setattr(Interned, "_first", lambda self, array: array)
        patch.setattr(elimination_plan, "first_equal", lambda tables: list(range(len(tables))))
        yield


def parts(seed: int) -> Problem:
    """Return 2 to 6 equal parts of random shape one after the other, which share up to two nodes, and other ends."""
    rng = np.random.default_rng(seed)
    n_parts, n_hubs = int(rng.integers(2, 7)), int(rng.integers(0, 3))
    sizes = rng.integers(1, 5, int(rng.integers(1, 5))).tolist()
    hubs = rng.integers(1, 4, n_hubs).tolist()
    limit = int(rng.choice(LIMITS))

    def own(n: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.integers(0, limit, n), rng.integers(0, limit, n)

    def between(*shape: int) -> tuple[np.ndarray, np.ndarray]:
        mem, time = rng.integers(0, limit, (2, *shape))
        gone = rng.random(shape) < 0.1
        return np.where(gone, INFEASIBLE, mem), np.where(gone, INFEASIBLE, time)

    def drawn(pairs: list[tuple[int, int]], of: list[int], to: list[int]):
        return [(i, j, *between(of[i], to[j])) for i, j in pairs]

    of_nodes = [own(n) for n in sizes]
    indices = range(len(sizes))
    inner = drawn([(i, j) for j in indices for i in range(j) if i == j - 1 or rng.random() < 0.4], sizes, sizes)
    outer = drawn([(int(rng.integers(len(sizes))), int(rng.integers(len(sizes)))) for _ in range(int(rng.integers(1, 3)))],
                  sizes, sizes)  # fmt: skip
    to_hubs = drawn([(hub, int(rng.integers(len(sizes)))) for hub in range(n_hubs)], hubs, sizes)
    nodes = [Node(f"hub {i}", *own(n)) for i, n in enumerate(hubs)]
    edges = []
    for part in range(n_parts):
        base = n_hubs + part * len(sizes)
        nodes += [Node(f"{part}.{i}", mem.copy(), time.copy()) for i, (mem, time) in enumerate(of_nodes)]
        links = [(base + i, base + j, *costs) for i, j, *costs in inner]
        links += [(hub, base + j, *costs) for hub, j, *costs in to_hubs]
        links += [(base - len(sizes) + i, base + j, *costs) for i, j, *costs in outer if part]
        edges += [Edge(source, target, mem.copy(), time.copy()) for source, target, mem, time in links]
    nodes.append(Node("last", *own(3)))  # what comes after the last part breaks its symmetry
    edges.append(Edge(len(nodes) - 2, len(nodes) - 1, *between(sizes[-1], 3)))
    return Problem(tuple(nodes), tuple(edges))


@pytest.mark.parametrize("batch", first(1, range(34)))
def test_folded_is_unfolded(batch: int) -> None:
    """To the byte and the nanosecond; 30 random problems a batch."""
    n_feasible = 0
    for seed in range(30 * batch, 30 * batch + 30):
        problem = parts(seed)
        try:
            found = search(problem)
        except InfeasibleError as error:
            with unfolded(), pytest.raises(InfeasibleError) as other:
                search(problem)
            assert str(other.value) == str(error)
            continue
        with unfolded():
            expected = search(problem)
        assert found.exact and expected.exact, seed
        assert real_points(problem, found) == real_points(problem, expected), seed
        n_feasible += 1
    assert n_feasible >= 15


@pytest.mark.parametrize("max_cells", [1 << 20, 8])
@pytest.mark.parametrize("seed", first(10, range(200)))
def test_weighted_searches_are_equal_folded_and_unfolded(seed: int, max_cells: int) -> None:
    """Least costs and min-marginals, exact ones, and bounds where tables are split."""
    problem = interned(parts(seed))
    with unfolded():
        alone = WeightedSearch(apart(problem), max_cells)
    together = WeightedSearch(problem, max_cells)
    for weights in ((1, 0), (3, 5), (0, 1)):
        try:
            one = together.marginals(weights)
        except InfeasibleError:
            with pytest.raises(InfeasibleError):
                alone.marginals(weights)
            continue
        other = alone.marginals(weights)
        assert one.least.bound == other.least.bound
        assert np.array_equal(one.least.strategy, other.least.strategy)
        assert all(np.array_equal(a, b) for a, b in zip(one.nodes, other.nodes, strict=True))


@pytest.mark.parametrize("seed", first(10, range(200)))
def test_samples_of_equal_parts_estimate_marginals(seed: int) -> None:
    """Enough samples are all; one gives all parts of a kind the marginals of one of them, and the least cost stays."""
    search_of = WeightedSearch(interned(parts(seed)), 8)
    try:
        exact = search_of.marginals((3, 5))
    except InfeasibleError:
        return
    of_all, of_one = (search_of.marginals((3, 5), samples=samples) for samples in (6, 1))
    assert all(np.array_equal(a, b) for a, b in zip(exact.nodes, of_all.nodes, strict=True))
    assert of_one.least.bound == exact.least.bound
    of_kind: dict[int, list[np.ndarray]] = {}
    for step in search_of.plan.steps:
        if len(step.buckets) == 1:
            of_kind.setdefault(search_of.plan.same[step.buckets[0].result], []).append(of_one.nodes[step.variable])
    assert all(np.array_equal(those[0], each) for those in of_kind.values() for each in those)


def tracked(problem: Problem) -> Tracked:
    """Return the points of one run of eliminations and LDP, with thinning."""
    thinning = Thinning.of(problem, 0.02, 8)
    return track(problem, True, thinning, Limits(1 << 12), lambda graph: None)


@pytest.mark.parametrize("seed", first(20, range(400)))
def test_eliminations_are_equal_folded_and_unfolded(seed: int) -> None:
    """Points, strategies and what thinning may have lost: what is done once is what would be done for each part."""
    problem = interned(parts(seed))
    try:
        one = tracked(problem)
    except InfeasibleError:
        with pytest.raises(InfeasibleError):
            tracked(apart(problem))
        return
    other = tracked(apart(problem))
    assert real_points(problem, one) == real_points(problem, other)
    assert np.array_equal(one.strategies, other.strategies)
    assert one.slack == other.slack and one.counts == other.counts


def test_equal_parts_are_eliminated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sums: list[int] = []
    original = table_graph.sum_out

    def counted(a: Table, b: Table, variable: int) -> Table:
        sums.append(variable)
        return original(a, b, variable)

    monkeypatch.setattr(table_graph, "sum_out", counted)
    problem = interned(parts(9))
    tracked(problem)
    n_folded = len(sums)
    tracked(apart(problem))
    assert n_folded < len(sums) - n_folded


def test_unfolded_really_computes_each_part_by_itself() -> None:
    """Else the tests above would hold the search against itself."""
    problem = interned(parts(5))
    with unfolded():
        plan, of_one, array = WeightedSearch(apart(problem)).plan, Interned(), np.arange(3)
        assert of_one(array) is array and of_one(array.copy()) is not array
    assert plan.same == list(range(len(plan.same)))
    same = WeightedSearch(problem).plan.same
    assert same != list(range(len(same)))
