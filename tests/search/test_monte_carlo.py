"""FlexFlow's search: against enumeration, within limits, from its seeds, and when it ends."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from helpers.large import first
from helpers.searches import find_frontier
from search.simulated_tasks import LONG, MOST, MOST_LARGE, SIZES, enumerated_ns, model_of, task_of, walked_lenet5

from tensoropt.common.errors import InputError
from tensoropt.ft import search as search_frontier
from tensoropt.profiling.hardware import Hardware, named
from tensoropt.program.simulator import network_of
from tensoropt.search.flexflow import monte_carlo
from tensoropt.search.flexflow.monte_carlo import MonteCarloResult, SearchLimits, Walk, acceptance
from tensoropt.search.options import mini_time
from tensoropt.search.problem.config_space import COMPACT
from tensoropt.search.request import Request
from tensoropt.search.task import BaselineTask


def found_by(task: BaselineTask, hardware: Hardware, limits: SearchLimits) -> MonteCarloResult:
    return monte_carlo.search(task, network_of(hardware, task.mesh), limits)


@pytest.mark.parametrize(("name", "cluster", "seed"), first(1, [
    (name, ("k80-1x4", "p100-1x4")[(i + other) % 2], seed)
    for seed in range(5) for other in range(2) for i, name in enumerate(SIZES)
]))  # fmt: skip
def test_it_finds_the_enumerated_optimum(name, cluster, seed):
    hardware = named(cluster)
    task = task_of(name, hardware, seed, MOST if seed == 0 else MOST_LARGE)
    assert found_by(task, hardware, SearchLimits(LONG, seed=seed)).candidates[0][0] == enumerated_ns(task, hardware)


@pytest.mark.parametrize("name", SIZES)
def test_so_does_the_frontier_s_search_where_nothing_overlaps(name):
    hardware = replace(named("k80-1x4"), topology=None)
    task = task_of(name, hardware, 1, MOST // 4)
    expected = enumerated_ns(task, hardware)
    assert int(search_frontier(task.full_problem().problem).time_ns[-1]) == expected
    assert found_by(task, hardware, SearchLimits(LONG)).candidates[0][0] == expected


def test_a_result_follows_from_the_seed_alone():
    hardware = named("p100-1x4")
    task = task_of("lenet5", hardware, 1)
    one, again, other = (found_by(task, hardware, SearchLimits(LONG, seed=seed)) for seed in (1, 1, 2))
    assert one.candidates == again.candidates and one.walks == again.walks
    assert one.walks != other.walks


def test_walks_start_from_three_seeds_and_the_best_of_all_is_found():
    found = walked_lenet5("p100-1x4")
    assert [walk.name for walk in found.walks] == ["data-parallel", "one-weird-trick", "random"]
    costs = [cost for cost, _ in found.candidates]
    assert costs == sorted(costs) and costs[0] == min(walk.best_ns for walk in found.walks)
    assert all(walk.best_ns <= walk.start_ns and walk.is_over for walk in found.walks)
    assert costs[0] < found.walks[0].start_ns
    assert "data-parallel" in found.note and "no operator runs on a part of the devices" in found.note


def test_what_was_found_costs_what_the_full_simulation_says():
    hardware = named("k80-1x4")
    found = find_frontier(model_of("lenet5"), hardware, 4, algorithm="mcmc", space=COMPACT)
    assert f"simulated {found.simulated_ns(0) / 1e3:,.1f} us" in found.note
    assert len(found.points) == 1 and not found.found.exact


def test_a_walk_ends_when_half_of_its_proposals_found_nothing_better():
    assert not Walk("", 1, 1, n_proposals=999, improved_at=0).is_over
    assert Walk("", 1, 1, n_proposals=1000, improved_at=500).is_over
    assert not Walk("", 1, 1, n_proposals=1000, improved_at=501).is_over


def test_without_time_the_seeds_are_the_answer():
    hardware = named("p100-1x4")
    found = found_by(task_of("lenet5", hardware), hardware, SearchLimits(0.0))
    assert [walk.n_proposals for walk in found.walks] == [0, 0, 0]
    assert found.candidates[0][0] == min(walk.start_ns for walk in found.walks)


def test_the_probability_of_metropolis_and_hastings():
    assert acceptance(0.5, 100, 100) == acceptance(0.5, 100, 40) == 1.0
    assert acceptance(0.5, 100, 102) == pytest.approx(math.exp(-1.0))
    assert acceptance(1.0, 100, 10**9) == 0.0


def test_a_memory_limit_is_kept_and_a_seed_that_does_not_fit_comes_to_fit():
    hardware = named("p100-1x4")
    task = task_of("lenet5", hardware)
    problem = task.full_problem().problem
    free = walked_lenet5("p100-1x4")
    needed = problem.cost(free.candidates[0][1])[0]
    limit = round(0.85 * needed)
    found = found_by(task, hardware, SearchLimits(LONG, limit))
    assert all(problem.cost(states)[0] <= limit for _, states in found.candidates)
    assert found.candidates[0][0] >= free.candidates[0][0]


def test_where_nothing_fits_the_least_memory_that_was_met_is_told():
    request = Request(model_of("lenet5"), named("p100-1x4"), 1000, algorithm="mcmc", space=COMPACT)
    with pytest.raises(InputError, match="1,000 bytes"):
        mini_time(request, 4)
    task = task_of("lenet5", named("p100-1x4"))
    found = found_by(task, named("p100-1x4"), SearchLimits(LONG, 1000))
    assert len(found.candidates) == 1 and all(walk.best_ns is None for walk in found.walks)
    # Each walk goes on for as long as it comes to less memory itself, whatever the others needed.
    least = [walk.least_bytes for walk in found.walks]
    assert min(least) == task.full_problem().problem.cost(found.candidates[0][1])[0]
    assert all(walk.improved_at > 0 and walk.is_over for walk in found.walks)


def test_ctrl_c_keeps_the_best_so_far():
    hardware = named("p100-1x4")
    calls = []

    def interrupted(done: int, total: int) -> None:
        calls.append(done)
        if len(calls) == 3:
            raise KeyboardInterrupt

    task = task_of("lenet5", hardware)
    found = monte_carlo.search(task, network_of(hardware, task.mesh), SearchLimits(LONG), interrupted)
    assert found.is_interrupted and found.candidates and len(found.walks) == 1
    assert "interrupted, the best so far" in found.note


@pytest.mark.parametrize(("arguments", "told"), [
    ({"micro_batches": 2}, "micro-batches"), ({"force": {"conv_1/Conv2D": {"n": 2}}}, "force"),
    ({"objectives": ("memory", "network")}, "objectives"),
])  # fmt: skip
def test_what_it_does_not_take_is_refused(arguments, told):
    with pytest.raises(InputError, match=f"'mcmc' .*{told}"):
        find_frontier(model_of("lenet5"), named("p100-1x4"), 4, algorithm="mcmc", **arguments)


def test_from_the_frontier_on_nothing_slower_than_its_fastest_points_is_found():
    hardware = named("p100-1x4")
    task = task_of("lenet5", hardware)
    points = search_frontier(task.full_problem().problem)
    found = monte_carlo.search(task, network_of(hardware, task.mesh), SearchLimits(LONG), frontier=points)
    names = [walk.name for walk in found.walks]
    starts_ns = [walk.start_ns for walk in found.walks]
    assert starts_ns == sorted(starts_ns) and any("of the frontier" in name for name in names)
    assert found.candidates[0][0] <= min(starts_ns)
    one = find_frontier(model_of("lenet5"), hardware, 4, algorithm="ft-simulated", space=COMPACT)
    assert len(one.points) == 1 and f"simulated {one.simulated_ns(0) / 1e3:,.1f} us" in one.note
