"""The least weighted cost and min-marginals against enumeration; lower bounds where tables are too small."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import pytest

from tensoropt.ft import INFEASIBLE, Edge, InfeasibleError, Node, Problem
from tensoropt.ft import search as frontier_search
from tensoropt.ft.weighted import passes as weighted_pass
from tensoropt.ft.weighted.lagrangian import lagrangian
from tensoropt.ft.weighted.min_plus import min_plus, weigh
from tensoropt.ft.weighted.passes import Shares, WeightedPass
from tensoropt.ft.weighted.weighted_search import TimeIsUpError, WeightedSearch, mixed

from .problems import SHAPES, Costs, all_strategies, build, random_problem, resnet_pairs
from .test_folding import apart

WEIGHTS = ((1, 0), (0, 1), (1, 1), (3, 7), (1000, 1))


def small_problem(seed: int) -> Problem:
    """Few strategies, and costs that add up exactly in any of WEIGHTS."""
    problem = random_problem(seed)
    while max(int(np.where(n.mem_bytes < INFEASIBLE, n.mem_bytes, 0).max()) for n in problem.nodes) > 1 << 35 or (
        math.prod(node.n_states for node in problem.nodes) > 1500
    ):
        seed += 10_000
        problem = random_problem(seed)
    return problem


def entangled_problem(seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    n, pairs = SHAPES[("clique", "mask", "attention")[seed % 3]]
    return build(rng, [4] * n if n < 7 else [3, 2, 3, 2, 3, 2, 3], pairs, Costs(10**6, float(rng.choice([0.0, 0.1]))))


def searches(
    seeds: range, max_cells: int, draw: Callable[[int], Problem] = small_problem
) -> list[tuple[Problem, WeightedSearch, tuple[np.ndarray, ...]]]:
    found = []
    for seed in seeds:
        problem = draw(seed)
        strategies, mem, time_ns = all_strategies(problem)
        search = WeightedSearch(problem, max_cells)
        if len(strategies):
            found.append((problem, search, (strategies, mem, time_ns)))
        else:
            with pytest.raises(InfeasibleError, match="no strategy is allowed"):
                search.least((1, 1))
    assert len(found) > len(seeds) / 3
    return found


@pytest.mark.parametrize("batch", range(3))
def test_least_and_marginals_equal_enumeration(batch: int) -> None:
    for problem, search, (strategies, mem, time_ns) in searches(range(batch * 40, batch * 40 + 40), 1 << 20):
        assert search.plan.is_exact
        for weights in WEIGHTS:
            costs = (weights[0] * mem + weights[1] * time_ns).astype(np.float64)
            got = search.marginals(weights)
            assert got.least.is_exact
            assert got.least.bound == costs.min()
            assert got.least.strategy is not None
            assert problem.cost(got.least.strategy) == (got.least.mem_bytes, got.least.time_ns)
            for node, marginal in enumerate(got.nodes):
                expected = [costs[strategies[:, node] == s].min(initial=np.inf) for s in range(len(marginal))]
                assert marginal.tolist() == expected


@pytest.mark.parametrize("max_cells", [1, 3, 8])
def test_small_tables_give_lower_bounds_and_real_strategies(max_cells: int) -> None:
    n_relaxed = n_below = n_found = 0
    for problem, search, (strategies, mem, time_ns) in [
        *searches(range(40), max_cells),
        *searches(range(40), max_cells, entangled_problem),
    ]:
        for weights in ((1, 0), (3, 7)):
            costs = (weights[0] * mem + weights[1] * time_ns).astype(np.float64)
            got = search.marginals(weights)
            assert got.least.bound <= costs.min()
            n_relaxed += not search.plan.is_exact
            n_below += got.least.bound < costs.min()
            if got.least.strategy is not None:
                n_found += 1
                assert problem.cost(got.least.strategy) == (got.least.mem_bytes, got.least.time_ns)
                cost = weights[0] * got.least.mem_bytes + weights[1] * got.least.time_ns
                assert cost >= costs.min()
                assert got.least.is_exact == (cost == got.least.bound)
            for node, marginal in enumerate(got.nodes):
                true = [costs[strategies[:, node] == s].min(initial=np.inf) for s in range(len(marginal))]
                assert (marginal <= true).all()
    assert n_relaxed > 20
    assert n_below > 10
    assert n_found > 50


def test_what_is_rounded_is_still_a_bound() -> None:
    """Costs near 2^53 times weights that are no integers."""
    for seed in range(30):
        problem = build(np.random.default_rng(seed), [3] * 5, SHAPES["clique"][1], Costs(1 << 51))
        _, mem, time_ns = all_strategies(problem)
        for weights in ((0.1, 0.7), (1, 1), (math.pi, 1e-3)):
            got = WeightedSearch(problem).least(weights)
            true = float((weights[0] * mem + weights[1] * time_ns).min())
            assert true * (1 - 1e-12) <= got.bound <= true


def test_integer_weights_are_as_exact_as_can_be() -> None:
    problem = build(np.random.default_rng(0), [5] * 9, resnet_pairs(2), Costs(1 << 38))
    search = WeightedSearch(problem)
    for mem, time_ns in ((1.0, 0.0), (0.0, 1.0), (1.0, 0.37), (1e-9, 1.0), (1.0, 1e-30)):
        weights = search.integer_weights(mem, time_ns)
        assert search.least(weights).is_exact
        assert any(weights)
        if min(mem, time_ns) > 1e-3:
            assert weights[0] / weights[1] == pytest.approx(mem / time_ns, rel=1e-1)


def test_wrong_weights_and_no_time() -> None:
    problem = build(np.random.default_rng(0), [5] * 9, resnet_pairs(2), Costs(100))
    for weights in ((-1, 1), (math.inf, 1), (1, math.nan)):
        with pytest.raises(ValueError, match="weights of memory and time"):
            WeightedSearch(problem).least(weights)
    with pytest.raises(TimeIsUpError):
        WeightedSearch(problem, deadline=time.monotonic() - 1).least((1, 1))


@pytest.mark.parametrize("seed", range(6))
def test_products_of_matrices_are_those_of_numpy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(60):
        n_batch, n_outer, n_groups, n_inner = rng.integers(1, (4, 9, 40, 70))
        left = rng.integers(0, int(rng.choice([3, 50, 10**9])), (n_batch, n_outer, n_groups)).astype(np.float64)
        right = rng.integers(-20, int(rng.choice([3, 50, 10**9])), (n_batch, n_groups, n_inner)).astype(np.float64)
        for matrix in (left, right):
            matrix[rng.random(matrix.shape) < rng.choice([0, 0.3, 0.95])] = np.inf
        expected = (left[..., None] + right[:, None]).min(axis=2)
        assert min_plus(left, right).tolist() == expected.tolist()


@pytest.mark.parametrize("seed", range(6))
def test_weighted_costs_are_those_of_numpy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for shape in ((1,), (37,), (5, 11), (1, 64)):
        mem, time_ns = (rng.integers(0, 1 << 50, shape) for _ in range(2))
        forbidden = rng.random(shape) < rng.choice([0, 0.5, 1])
        weights = float(rng.integers(0, 1000)), float(rng.random())
        given = [(mem, time_ns, forbidden), (mem.T, time_ns.T, forbidden.T)]
        for costs in given:
            found = np.empty(costs[0].shape)
            weigh(*costs, weights, found)
            assert found.tolist() == np.where(costs[2], np.inf, costs[0] * weights[0] + costs[1] * weights[1]).tolist()


@pytest.mark.parametrize("max_cells", [20, 1 << 20])
def test_small_chunks_change_nothing(max_cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed, (n, pairs) in enumerate(SHAPES.values()):
        problem = build(np.random.default_rng(seed), [6] * n, pairs, Costs(10**6, 0.05))
        search = WeightedSearch(problem, max_cells)
        got = []
        for chunk in (1 << 22, 8):
            monkeypatch.setattr(weighted_pass, "_CHUNK", chunk)
            got.append([search.marginals(weights) for weights in WEIGHTS])
        for first, *others in zip(*got, strict=True):
            for other in others:
                assert (first.least.bound, first.least.is_exact) == (other.least.bound, other.least.is_exact)
                assert (first.least.mem_bytes, first.least.time_ns) == (other.least.mem_bytes, other.least.time_ns)
                for mine, its in zip(first.nodes, other.nodes, strict=True):
                    assert mine.tolist() == its.tolist()


@pytest.mark.parametrize("max_cells", [5, 1 << 20])
def test_layers_that_are_alike_are_searched_once(max_cells: int) -> None:
    """Equal costs, whether they share arrays or not, make what different ones would."""
    rng = np.random.default_rng(7)
    layer = build(rng, [6, 3, 3], [(0, 1), (0, 2), (1, 2)], Costs(1000, 0.05))
    joint = Edge(0, 3, rng.integers(0, 100, (6, 6)), rng.integers(0, 100, (6, 6)))
    nodes = layer.nodes * 6
    starts = range(0, len(nodes), 3)
    edges = [Edge(e.source + at, e.target + at, e.mem_bytes, e.time_ns) for at in starts for e in layer.edges]
    edges += [Edge(at, 3 + at, joint.mem_bytes, joint.time_ns) for at in starts[:-1]]
    shared = Problem(nodes, tuple(edges))
    together, alone = WeightedSearch(shared, max_cells), WeightedSearch(apart(shared), max_cells)
    given = len(together.plan.costs)
    assert len(set(together.plan.same[given:])) < (len(together.plan.same) - given) * 2 / 3
    alone.plan.same[:] = range(len(alone.plan.same))
    for weights in WEIGHTS:
        one, other = (search.marginals(weights) for search in (together, alone))
        assert one.least.bound == other.least.bound
        assert [m.tolist() for m in one.nodes] == [m.tolist() for m in other.nodes]
    if together.plan.is_exact:
        return
    for weights in WEIGHTS:  # shares that are equal for equal layers, as the first round leaves them
        first, second = (WeightedPass(together.setting, weights) for _ in range(2))
        first.marginals()
        second.find_moves()
        assert [*map(str, first.moves.values())] == [*map(str, second.moves.values())]
        first.marginals(False)
        moves = together._averaged(first.moves)
        own = {
            variable: [share + np.floor(move / 2) for share, move in zip(first.own[variable][1:], those, strict=True)]
            for variable, those in moves.items()
        }
        one, other = (WeightedPass(search.setting, weights, Shares(own, is_even=True)) for search in (together, alone))
        assert one.folds and one.total == other.total
        pairs = zip(one.marginals(False).nodes, other.marginals(False).nodes, strict=True)
        assert all((mine == its).all() for mine, its in pairs)


def test_sharing_out_again_lifts_bounds_and_keeps_them_valid() -> None:
    n_relaxed, before, after = 0, 0.0, 0.0
    for draw, max_cells in ((small_problem, 3), (entangled_problem, 8), (entangled_problem, 3)):
        for problem, search, (strategies, mem, time_ns) in searches(range(30), max_cells, draw):
            if search.plan.is_exact:
                continue
            for mem_weight, time_weight in ((1.0, 0.0), (3.0, 7.0)):
                weights = search.integer_weights(mem_weight, time_weight)
                costs = np.array(weights[0] * mem.astype(object) + weights[1] * time_ns.astype(object), np.float64)
                plain = search.least(weights)
                found = search.tightened(weights)
                assert max(each.bound for each in found) == found[-1].bound <= costs.min()
                assert found[-1].bound >= plain.bound
                for each in found:
                    if each.strategy is not None:
                        assert problem.cost(each.strategy) == (each.mem_bytes, each.time_ns)
                got = search.marginals(weights)
                assert got.least.bound == found[-1].bound
                for node, marginal in enumerate(got.nodes):
                    true = [costs[strategies[:, node] == s].min(initial=np.inf) for s in range(len(marginal))]
                    assert (marginal <= true).all()
                n_relaxed += 1
                before += 1 - plain.bound / costs.min()
                after += 1 - found[-1].bound / costs.min()
    assert n_relaxed > 50
    assert after < before / 3


def test_shares_between_those_of_two_weights_are_as_good() -> None:
    for _, search, _ in searches(range(30), 4, entangled_problem):
        ends = [search.tightened(weights)[-1] for weights in ((900.0, 100.0), (100.0, 900.0))]
        start = mixed(*(search.shares[end.weights] for end in ends), (0.25, 0.75))
        first = search.tightened((300.0, 700.0), shares=start, upper_bound=0.0)
        assert len(first) == 1
        rounding = 2 * sum(len(step.buckets) for step in search.plan.steps)
        assert first[0].bound >= 0.25 * ends[0].bound + 0.75 * ends[1].bound - rounding


def test_weights_keep_their_ratio_however_large_the_costs() -> None:
    """Sums that would pass 2^52 are rounded, and bounds lowered by that; no weight becomes 0."""
    rng = np.random.default_rng(0)
    nodes = tuple(Node(f"n{i}", *rng.integers(0, 1 << 44, (2, 4))) for i in range(8))
    edges = tuple(Edge(i, i + 1, *rng.integers(0, 1 << 44, (2, 4, 4))) for i in range(7))
    problem = Problem(nodes, edges)
    true = frontier_search(problem)
    weighted = WeightedSearch(problem)
    for ratio in (0.05, 1.0, 20.0):
        mem, time = weighted.integer_weights(ratio, 1.0)
        assert mem / time == pytest.approx(ratio, rel=0.02)
        least = min(mem * m + time * t for m, t in zip(true.mem_bytes.tolist(), true.time_ns.tolist(), strict=True))
        found = weighted.least((mem, time))
        assert found.bound <= least
        assert found.bound == pytest.approx(least, rel=1e-9)


@pytest.mark.parametrize("largest", [1 << 38, 1 << 44, 1 << 47])
def test_lines_are_found_between_the_first_two_however_large_the_costs(largest: int) -> None:
    """A deep model on hundreds of devices has sums of 10^15 bytes, and its time counts for fifty times its memory."""
    rng = np.random.default_rng(0)
    nodes = tuple(Node(f"n{i}", rng.integers(0, largest, 4), rng.integers(0, largest >> 4, 4)) for i in range(8))
    edges = tuple(Edge(i, i + 1, rng.integers(0, largest, (4, 4)), rng.integers(0, largest >> 4, (4, 4))) for i in range(7))
    search = WeightedSearch(Problem(nodes, edges))
    for ratio in (1 / 300, 1 / 16, 3.0, 50.0, 300.0):
        mem, time = search.integer_weights(ratio, 1.0)
        assert mem / time == pytest.approx(ratio, rel=0.13)
    assert len(lagrangian(search, 9, gap=0.0).lines) > 5
