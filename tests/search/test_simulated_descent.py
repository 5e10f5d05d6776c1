"""The descent by simulated times: against enumeration and FlexFlow's search, within limits, and when it ends."""

from __future__ import annotations

import random
from functools import cache

import pytest
from helpers.large import first
from search.simulated_tasks import LONG, MOST, MOST_LARGE, SIZES, enumerated_ns, model_of, task_of, walked_lenet5

from tensoropt.common.errors import InputError
from tensoropt.ft import search as search_frontier
from tensoropt.plan.find_frontier import find_frontier
from tensoropt.plan.options import mini_time
from tensoropt.plan.request import Request
from tensoropt.profiling.hardware import Hardware, named
from tensoropt.program.simulator import network_of
from tensoropt.search import simulated_descent
from tensoropt.search.baselines.task import BaselineTask
from tensoropt.search.monte_carlo import SearchLimits
from tensoropt.search.problem.config_space import COMPACT
from tensoropt.search.simulated_descent import DescentResult
from tensoropt.search.simulated_position import Neighbours


def found_by(task: BaselineTask, hardware: Hardware, limits: SearchLimits, progress=None) -> DescentResult:
    found = search_frontier(task.full_problem().problem)
    return simulated_descent.search(task, network_of(hardware, task.mesh), found, limits, progress)


@cache
def descended_lenet5(cluster: str) -> DescentResult:
    hardware = named(cluster)
    return found_by(task_of("lenet5", hardware), hardware, SearchLimits(LONG))


@pytest.mark.parametrize(("name", "cluster", "seed"), first(2, [
    (name, ("k80-1x4", "p100-1x4")[(i + other) % 2], seed)
    for seed in range(5) for other in range(2) for i, name in enumerate(SIZES)
]))  # fmt: skip
def test_it_finds_the_enumerated_optimum(name, cluster, seed):
    hardware = named(cluster)
    task = task_of(name, hardware, seed, MOST if seed == 0 else MOST_LARGE)
    assert found_by(task, hardware, SearchLimits(LONG)).candidates[0][0] == enumerated_ns(task, hardware)


@pytest.mark.parametrize("cluster", ["p100-1x4", "k80-1x4"])
def test_it_is_no_slower_than_the_frontier_s_fastest_and_flexflow_s_search(cluster):
    hardware = named(cluster)
    task, found = task_of("lenet5", hardware), descended_lenet5(cluster)
    walked = walked_lenet5(cluster)
    assert found.candidates[0][0] <= min(found.fastest_ns, walked.candidates[0][0])
    assert sum(walk.n_proposals for walk in walked.walks) > 2000
    again = found_by(task, hardware, SearchLimits(LONG))
    assert again.candidates == found.candidates and again.n_simulated == found.n_simulated


def test_what_was_found_costs_what_the_full_simulation_says():
    hardware = named("k80-1x4")
    found = find_frontier(model_of("lenet5"), hardware, 4, algorithm="ft-simulated", space=COMPACT)
    assert f"simulated {found.simulated_ns(0) / 1e3:,.1f} us" in found.note and "the frontier's fastest" in found.note
    assert len(found.points) == 1 and not found.found.exact


def test_the_least_that_a_state_adds_is_the_least_of_its_changes():
    hardware = named("p100-1x4")
    task = task_of("lenet5", hardware)
    problem = Neighbours(task.full_problem())
    rng = random.Random(1)
    n_held = 0
    for _ in range(20):
        states = problem.with_copies([rng.randrange(node.n_states) for node in problem.built.problem.nodes])
        for node in problem.free:
            least_ns = problem.least_added_ns(states, node)
            for state in range(len(least_ns)):
                changes = problem.moved(states, node, state, keeps_copies=False)
                added = problem.added(states, changes)
                if added is not None and state != states[node]:
                    assert least_ns[state] <= added.time_ns, (node, state)
                    n_held += 1
    assert n_held > 100


def test_what_a_pair_adds_is_that_of_both_changes():
    hardware = named("p100-1x4")
    problem = Neighbours(task_of("lenet5", hardware).full_problem())
    nodes = problem.built.problem.nodes
    assert {edge for edge in problem.pairs if set(edge) & set(problem.copies)} == set()
    rng = random.Random(2)
    n_held = n_exact = 0
    for _ in range(10):
        states = problem.with_copies([rng.randrange(node.n_states) for node in nodes])
        for pair in problem.pairs:
            added_ns = problem.pair_added_ns(states, pair)
            copies = [problem.next_copies[node] for node in pair]
            for _ in range(10):
                chosen = tuple(rng.randrange(nodes[node].n_states) for node in pair)
                changes = problem.moved_together(states, dict(zip(pair, chosen, strict=True)))
                added = problem.added(states, changes)
                if added is not None and not any(copies):
                    assert added_ns[chosen] == added.time_ns
                    n_exact += 1
                elif added is not None and not set(copies[0]) & set(copies[1]):
                    assert added_ns[chosen] <= added.time_ns
                    n_held += 1
    assert n_held + n_exact > 100 and n_exact > 10


def test_a_memory_limit_is_kept():
    hardware = named("p100-1x4")
    task = task_of("lenet5", hardware)
    problem = task.full_problem().problem
    free = descended_lenet5("p100-1x4")
    limit = round(0.85 * problem.cost(free.candidates[0][1])[0])
    found = found_by(task, hardware, SearchLimits(LONG, limit))
    assert all(problem.cost(states)[0] <= limit for _, states in found.candidates)
    assert found.candidates[0][0] >= free.candidates[0][0]


def test_where_nothing_fits_the_least_memory_is_told():
    request = Request(model_of("lenet5"), named("p100-1x4"), 1000, algorithm="ft-simulated", space=COMPACT)
    with pytest.raises(InputError, match="1,000 bytes"):
        mini_time(request, 4)


def test_without_time_the_fastest_of_the_starts_is_the_answer():
    hardware = named("p100-1x4")
    found = found_by(task_of("lenet5", hardware), hardware, SearchLimits(0.0))
    assert 1 < found.n_simulated <= simulated_descent.MOST_POINTS + 3 + simulated_descent.MOST_STARTS
    assert found.candidates[0][0] <= found.fastest_ns


def test_ctrl_c_keeps_the_best_so_far():
    hardware = named("p100-1x4")
    calls = []

    def interrupted(done: int, total: int) -> None:
        calls.append(done)
        if len(calls) == 3:
            raise KeyboardInterrupt

    found = found_by(task_of("lenet5", hardware), hardware, SearchLimits(LONG), interrupted)
    assert found.is_interrupted and found.candidates and "interrupted, the best so far" in found.note
