"""No point of a frontier is beaten in peak memory and time by another one, nor by a baseline's."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from helpers.large import first
from helpers.searches import find_frontier, plans_of

from tensoropt.ft import Budget, Frontier
from tensoropt.profiling.hardware import named
from tensoropt.search.compare import Comparison, beside_baselines, compare
from tensoropt.search.frontiers.find_frontier import find_baseline
from tensoropt.search.frontiers.model_frontier import ModelFrontier, least_peaks, longest_ascending

from .models import frontier_of, model_of


def points(frontier: ModelFrontier) -> list[tuple[int, int]]:
    """The peak of each point, counted by a replay of its own plan, and its time."""
    return [(frontier.peak(point).n_bytes, int(time)) for point, time in enumerate(frontier.found.time_ns)]


def beaten(frontier: ModelFrontier, by: ModelFrontier) -> list[tuple[int, int]]:
    better = points(by)
    return [
        (peak, time) for peak, time in points(frontier)
        if any(p <= peak and t <= time and (p, t) != (peak, time) for p, t in better)
    ]  # fmt: skip


def slowest_of(frontier: ModelFrontier) -> ModelFrontier:
    """The frontier as if a search had found its slowest point alone."""
    found = frontier.found
    slowest = Frontier(found.mem_bytes[:1], found.time_ns[:1], found.strategies[:1], {}, "ft-ldp")
    return replace(frontier, found=slowest, searched=slowest, _peaks={}, _simulated={})


@pytest.mark.parametrize("name", first(1, ["rnn", "vgg16", "transformer", "lenet5", "wide_resnet", "alexnet", "bert_large"]))
@pytest.mark.parametrize("without", first(1, ["", "remat", "remat reuse zero"]))
def test_no_point_is_beaten(name: str, without: str) -> None:
    # A frontier that is far from exact: baselines could well beat it.
    quick = Budget(max_points=2, seconds=0.0)
    frontier = find_frontier(model_of(name), named("v100-1x4"), 4, space="full", budget=quick, without=without.split())
    assert not beaten(frontier, frontier)
    compared = compare(frontier)
    assert not beaten(compared.frontier, compared.frontier)
    for each in compared.baselines.values():
        assert not beaten(compared.frontier, each)


@pytest.mark.parametrize("algorithm", ["data-parallel", "optcnn"])
def test_what_a_baseline_finds_becomes_a_point_at_its_own_costs(algorithm: str) -> None:
    frontier = frontier_of("lenet5", "full")
    alone = slowest_of(frontier)
    baseline = find_baseline(frontier, algorithm)
    joined = alone.joined([baseline])
    assert len(joined) == 2 and points(joined)[1:] == points(baseline)
    assert joined.found.mem_bytes[1] == baseline.found.mem_bytes[0]
    meant = baseline.built.strategy(baseline.found.strategies[0])
    assert joined.built.strategy(joined.found.strategies[1]).configs == meant.configs


def test_a_plan_is_chosen_again_where_a_baseline_gives_a_point() -> None:
    frontier = frontier_of("lenet5", "full")
    whole = plans_of(frontier).plan(-1, "mini_time")
    assert beside_baselines(whole, ["data-parallel"], None)[0] is whole
    alone = slowest_of(frontier)
    baseline = find_baseline(frontier, "data-parallel")
    plan, compared = beside_baselines(plans_of(alone).plan(0, "mini_time"), ["data-parallel"], None)
    assert plan.frontier.without_stages == [compared.frontier] and (plan.point, len(compared.frontier)) == (1, 2)
    assert plan.time_us == baseline.points[0].time_us
    within, _ = beside_baselines(plans_of(alone).plan(0, "mini_time"), ["data-parallel"], baseline.peak(0).n_bytes - 1)
    assert within.point == 0 and within.peak_bytes == alone.peak(0).n_bytes


def test_what_the_space_does_not_have_stays_out() -> None:
    frontier = frontier_of("rnn", "compact")
    tofu = find_baseline(frontier, "tofu")
    with pytest.raises(ValueError, match="no state of the node"):
        frontier.built.states_of(tofu.built.strategy(tofu.found.strategies[0]))
    joined = frontier.joined([tofu])
    assert np.array_equal(joined.found.strategies, frontier.found.strategies)
    slower = replace(frontier, found=replace(frontier.found, time_ns=frontier.found.time_ns + 10**12))
    (note,) = Comparison(slower, {"tofu": tofu}).notes_below()
    assert note.startswith("tofu: ") and "below the frontier, since the space that was searched, compact, doesn't" in note


@pytest.mark.parametrize("seed", first(10, range(30)))
def test_a_longest_ascending_subsequence(seed: int) -> None:
    """Against a dynamic program over all pairs."""
    values = np.random.default_rng(seed).integers(0, 12, seed % 15).tolist()
    found = longest_ascending(values)
    assert all(a < b and values[a] < values[b] for a, b in pairwise(found))
    lengths: list[int] = []
    for i, value in enumerate(values):
        lengths.append(1 + max((lengths[j] for j in range(i) if values[j] < value), default=0))
    assert len(found) == max(lengths, default=0)


@pytest.mark.parametrize("seed", first(20, range(60)))
def test_points_of_least_peaks_are_in_one_order_and_unbeaten(seed: int) -> None:
    rng = np.random.default_rng(seed)
    peaks, mem, times = rng.integers(1, (4, 9, 30)[seed % 3], (3, 1 + seed % 11))
    kept = least_peaks(peaks, mem, times)
    assert (np.diff(peaks[kept]) > 0).all() and (np.diff(mem[kept]) > 0).all() and (np.diff(times[kept]) < 0).all()
    costs = list(zip(peaks.tolist(), times.tolist(), strict=True))
    unbeaten = {each for each in costs if not any(p <= each[0] and t <= each[1] and (p, t) != each for p, t in costs)}
    assert {costs[i] for i in kept} <= unbeaten
    assert times[kept[-1]] == times.min()
    alone = {each: {m for m, c in zip(mem.tolist(), costs, strict=True) if c == each} for each in unbeaten}
    smallest, fastest = min(alone), max(alone)
    if all(len(those) == 1 for those in alone.values()) and min(alone[smallest]) < min(alone[fastest]):
        assert peaks[kept[0]] == peaks.min()
    orders = [min(alone[each]) for each in sorted(alone)]
    if all(len(those) == 1 for those in alone.values()) and orders == sorted(set(orders)):
        assert len(kept) == len(alone)


def test_a_strategy_that_beats_no_point_changes_nothing() -> None:
    """Though its peak may be smaller than all: it could have no place but another point's."""
    frontier = frontier_of("vgg16", "full")
    own = points(frontier)
    baseline = find_baseline(frontier, "one-weird-trick")
    assert not beaten(frontier, baseline)
    assert points(frontier.joined([baseline])) == own
