"""All baselines have costs that add up, and lie on or above the frontier."""

from __future__ import annotations

import pytest
from helpers.large import first
from helpers.searches import find_frontier
from program.saved_bytes import SavedBytes
from program.test_costs import time_ns, viewed_again_ns

from tensoropt.common.errors import InputError
from tensoropt.ft import InfeasibleError, search
from tensoropt.ft.weighted.weighted_search import WeightedSearch
from tensoropt.profiling.hardware import named
from tensoropt.search.algorithms import BASELINES
from tensoropt.search.baselines import search_baseline
from tensoropt.search.frontiers.find_frontier import find_baseline
from tensoropt.search.frontiers.model_frontier import ModelFrontier
from tensoropt.sharding.resharding import PathFinder
from tensoropt.sharding.strategy import Strategy

from .models import frontier_of, model_of, strategies_of, task_of, with_configs

MODELS = ("lenet5", "vgg16", "wide_resnet", "rnn")
SPACES = ("full", "compact")
FRONTIERS = [("lenet5", "full"), ("lenet5", "compact"), ("rnn", "compact")]
FRONTIERS += [(name, space) for name in MODELS for space in SPACES if (name, space) not in FRONTIERS]
"""Those that are searched by default, and the others."""
CHARGED = [("lenet5", "full"), ("lenet5", "compact"), ("transformer", "compact")]
CHARGED += [(name, space) for name in ("transformer", *MODELS[1:]) for space in SPACES if (name, space) not in CHARGED]


def charged(found: ModelFrontier, strategy: Strategy) -> tuple[int, int]:
    """Memory and time by the tasks of the strategy's step, without a Problem."""
    view, path_finder = found.model.view(strategy), PathFinder(found.costing.reshardings.steps)
    of_tasks = time_ns(view, found.costing, path_finder) - viewed_again_ns(view, found.costing, path_finder)
    return SavedBytes(view, found.costing, path_finder).charged, of_tasks


@pytest.mark.parametrize(("name", "space"), first(2, CHARGED))
@pytest.mark.parametrize("algorithm", BASELINES)
def test_points_cost_what_their_strategies_are_charged(algorithm, name, space):
    found = find_frontier(model_of(name), named("v100-1x4"), 4, algorithm=algorithm, space=space)
    points = sorted({0, len(found) // 2, len(found) - 1})
    for point in points:
        states = found.found.strategies[point]
        cost = int(found.found.mem_bytes[point]), int(found.found.time_ns[point])
        assert found.built.problem.cost(states.tolist()) == cost
        assert charged(found, found.built.strategy(states)) == cost
    assert found.found.algorithm == algorithm


@pytest.mark.parametrize(("name", "space"), first(3, CHARGED))
def test_points_with_regathered_copies_cost_what_their_strategies_are_charged(name, space):
    found = find_frontier(model_of(name), named("v100-1x4"), 4, space=space, without=["remat"])
    n_regathered = 0
    for point in range(0, len(found), max(1, len(found) // 5)):
        states = found.found.strategies[point]
        strategy = found.built.strategy(states)
        n_regathered += len(strategy.regathered)
        cost = int(found.found.mem_bytes[point]), int(found.found.time_ns[point])
        assert charged(found, strategy) == cost
    assert n_regathered


@pytest.mark.parametrize(("name", "space"), first(2, FRONTIERS))
def test_no_baseline_is_below_the_frontier_of_a_space_that_has_it(name, space):
    frontier = frontier_of(name, space)
    assert frontier.found.exact
    n_in_space = 0
    for algorithm in BASELINES:
        found, every = find_baseline(frontier, algorithm), frontier.certified
        below = [
            not ((every.mem_bytes <= mem_bytes) & (every.time_ns <= time_ns)).any()
            for mem_bytes, time_ns in zip(found.found.mem_bytes, found.found.time_ns, strict=True)
        ]
        for is_below, configs in zip(below, strategies_of(found), strict=True):
            try:
                search(with_configs(frontier.built, configs))
            except InfeasibleError:
                assert space == "compact"
                continue
            n_in_space += 1
            assert not is_below, f"{algorithm} is below the frontier"
    assert n_in_space >= 4


@pytest.mark.parametrize(("name", "space"), first(3, FRONTIERS))
def test_optcnn_finds_the_fastest_point_of_the_frontier(name, space):
    frontier = frontier_of(name, space)
    found = find_baseline(frontier, "optcnn").found
    assert found.exact and len(found) == 1
    assert found.time_ns[0] == frontier.found.time_ns[-1]


def test_optcnn_of_a_transformer_is_what_variable_elimination_alone_finds():
    for space in SPACES:
        found = find_frontier(model_of("transformer"), named("v100-1x2"), 2, algorithm="optcnn", space=space)
        least = WeightedSearch(found.built.problem).least((0, 1))
        assert found.found.exact and least.is_exact
        assert found.found.time_ns[0] == least.time_ns


@pytest.mark.parametrize("algorithm", BASELINES)
def test_one_device_has_one_strategy(algorithm):
    found = find_frontier(model_of("lenet5"), named("v100-1x4"), 1, algorithm=algorithm)
    one = find_frontier(model_of("lenet5"), named("v100-1x4"), 1)
    assert found.found.mem_bytes.tolist() == one.found.mem_bytes.tolist()
    assert found.found.time_ns.tolist() == one.found.time_ns.tolist()


def test_wrong_use_is_refused():
    with pytest.raises(ValueError, match="unknown baseline 'alpa'; choose one of data-parallel, one-weird-trick, "):
        search_baseline(task_of(frontier_of("lenet5", "full")), "alpa")
    with pytest.raises(InputError, match="'tofu' decides by itself what is split; leave out force="):
        find_frontier(model_of("lenet5"), named("v100-1x4"), 4, force={"MatMul": {"n": 2}}, algorithm="tofu")
