"""What holds of all baselines: costs that add up, none below the frontier, plans that run with one device's numbers."""

from __future__ import annotations

import pytest
import zoo
from execution.strategies import engine_of, train_and_check

from tensoropt.baselines import BASELINES, search_baseline
from tensoropt.comparison import Comparison
from tensoropt.deliveries import PlainCosts, Router
from tensoropt.errors import InputError
from tensoropt.frontier import ModelFrontier, find_baseline, find_frontier
from tensoropt.ft import InfeasibleError, search
from tensoropt.ft.least import WeightedSearch
from tensoropt.lowering.backends import EmulatedBackend
from tensoropt.planning import charges
from tensoropt.profiling.hardware import named
from tensoropt.strategy import Strategy, StrategyView
from tensoropt.takers import takers_of

from .models import frontier_of, model_of, strategies_of, task_of

MODELS = ("lenet5", "vgg16", "wide_resnet", "rnn")
SPACES = ("full", "compact")


def cost_from_scratch(found: ModelFrontier, strategy: Strategy) -> tuple[int, int]:
    """Memory and time by operators and charges, without a Problem."""
    costing, backward = found.costing, found.model.backward
    view = StrategyView(found.model.graph, strategy, backward.gradients)
    router, takers = Router(costing.deliveries.steps), takers_of(found.model.graph)
    mem = time_ns = 0
    for op in view.graph.step_operators:
        if op.updates is None:
            seen = view.interfaces[op.name]
            rule, config = view.rules[op.name], strategy.configs[op.name]
            mem += costing.mem_bytes(op, rule, config, seen)
            time_ns += costing.compute_time_ns(op, rule, config, seen)
    kept = {
        (tensor, taker.name)
        for tensor, those in takers.items()
        for taker in those
        if (taker.name, taker.position) in backward.kept_operands and not taker.is_update
    }
    for charge in charges(view):
        time_ns += router.time_ns(charge.delivery)
        target = charge.delivery.demand.layout
        is_copy = charge.tensor in takers and charge.delivery.source != target
        if is_copy and any((charge.tensor, name) in kept for name in charge.takers):
            shape = target.largest_local_shape(charge.delivery.shape)
            size = charge.delivery.item_bytes
            for extent in shape:
                size *= extent
            mem += size
    return mem, time_ns


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("name", (*MODELS, "transformer"))
@pytest.mark.parametrize("algorithm", BASELINES)
def test_points_cost_what_their_strategies_are_charged(algorithm, name, space):
    found = find_frontier(model_of(name), named("v100-1x4"), 4, algorithm=algorithm, space=space)
    points = sorted({0, len(found) // 2, len(found) - 1})
    for point in points:
        states = found.found.strategies[point]
        cost = int(found.found.mem_bytes[point]), int(found.found.time_ns[point])
        assert found.built.problem.cost(states.tolist()) == cost
        assert cost_from_scratch(found, found.built.strategy(states)) == cost
    assert found.found.algorithm == algorithm


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("name", MODELS)
def test_no_baseline_is_below_the_frontier_of_a_space_that_has_it(name, space):
    frontier = frontier_of(name, space)
    assert frontier.found.exact
    n_in_space = 0
    for algorithm in BASELINES:
        found = find_baseline(frontier, algorithm)
        below = Comparison(frontier, {}).is_below(found)
        for is_below, configs in zip(below, strategies_of(found), strict=True):
            try:
                search(frontier.built.allowing(lambda op, config, c=configs: c[op.name] == config).problem)
            except InfeasibleError:
                assert space == "compact"
                continue
            n_in_space += 1
            assert not is_below, f"{algorithm} is below the frontier"
    assert n_in_space >= 4


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("name", MODELS)
def test_optcnn_finds_the_fastest_point_of_the_frontier(name, space):
    frontier = frontier_of(name, space)
    found = find_baseline(frontier, "optcnn").found
    assert found.exact and len(found) == 1
    assert found.time_ns[0] == frontier.found.time_ns[-1]


def test_optcnn_of_a_transformer_is_what_variable_elimination_alone_finds():
    for space in SPACES:
        found = find_frontier(model_of("transformer"), named("v100-1x2"), 2, algorithm="optcnn", space=space)
        least = WeightedSearch(found.built.problem).least((0, 1))
        assert found.found.exact and least.exact
        assert found.found.time_ns[0] == least.time_ns


@pytest.mark.parametrize("algorithm", BASELINES)
@pytest.mark.parametrize("function", [zoo.mlp, zoo.cnn])
def test_plans_run_with_one_devices_numbers(function, algorithm):
    model = zoo.record(function, "adam")
    found = find_frontier(model.model, named("v100-1x4"), 4, algorithm=algorithm)
    for point in {0, len(found) - 1}:
        plan = found.plan(point)
        view = StrategyView(model.graph, plan.strategy, model.model.backward.gradients)
        train_and_check(engine_of(model, view, plan.router(PlainCosts()), EmulatedBackend(plan.mesh)), model)


@pytest.mark.parametrize("algorithm", BASELINES)
def test_one_device_has_one_strategy(algorithm):
    found = find_frontier(model_of("lenet5"), named("v100-1x4"), 1, algorithm=algorithm)
    one = find_frontier(model_of("lenet5"), named("v100-1x4"), 1)
    assert found.found.mem_bytes.tolist() == one.found.mem_bytes.tolist()
    assert found.found.time_ns.tolist() == one.found.time_ns.tolist()


def test_wrong_use_is_refused():
    with pytest.raises(ValueError, match="unknown baseline 'alpa'; choose one of data-parallel, one-weird-trick, "):
        search_baseline(task_of(frontier_of("lenet5", "full")), "alpa")
    with pytest.raises(InputError, match="'tofu' decides by itself what is split; leave force="):
        find_frontier(model_of("lenet5"), named("v100-1x4"), 4, {"MatMul": {"n": 2}}, "tofu")
