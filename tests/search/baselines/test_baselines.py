"""All baselines have costs that add up, lie on or above the frontier, and run with one device's numbers."""

from __future__ import annotations

import pytest
from helpers import zoo
from helpers.large import first
from helpers.searches import find_frontier, plans_of
from helpers.strategies import engine_of, train_and_check

from tensoropt.common.errors import InputError
from tensoropt.costs.config_costs import costs_of_config
from tensoropt.costs.resharding_costs import shard_bytes
from tensoropt.ft import InfeasibleError, search
from tensoropt.ft.weighted.weighted_search import WeightedSearch
from tensoropt.ir.body import viewed_operand
from tensoropt.ir.graph import Operator, Tensor
from tensoropt.lowering.resharding.backends import EmulatedBackend
from tensoropt.plan.build import cost_entries
from tensoropt.profiling.hardware import named
from tensoropt.reschedule.layout import Layout, is_view
from tensoropt.search.algorithms import BASELINES
from tensoropt.search.baselines import search_baseline
from tensoropt.search.frontiers.find_frontier import find_baseline
from tensoropt.search.frontiers.model_frontier import ModelFrontier
from tensoropt.sharding.consumers import Consumer, consumers_of, sharding_of
from tensoropt.sharding.resharding import PathFinder, PlainCosts
from tensoropt.sharding.strategy import Copy, Strategy, StrategyView

from .models import frontier_of, model_of, strategies_of, task_of

MODELS = ("lenet5", "vgg16", "wide_resnet", "rnn")
SPACES = ("full", "compact")
FRONTIERS = [("lenet5", "full"), ("lenet5", "compact"), ("rnn", "compact")]
FRONTIERS += [(name, space) for name in MODELS for space in SPACES if (name, space) not in FRONTIERS]
"""Those that are searched by default, and the others."""
CHARGED = [("lenet5", "full"), ("lenet5", "compact"), ("transformer", "compact")]
CHARGED += [(name, space) for name in ("transformer", *MODELS[1:]) for space in SPACES if (name, space) not in CHARGED]


def cost_from_scratch(found: ModelFrontier, strategy: Strategy) -> tuple[int, int]:
    """Memory and time by operators and charges, without a Problem."""
    costing, model = found.costing, found.model
    view = model.view(strategy)
    path_finder, consumers = PathFinder(costing.reshardings.steps), consumers_of(model.graph)
    mem = time_ns = 0
    for op in view.graph.step_operators:
        if op.updates is None:
            costs = costs_of_config(costing, op, view.rules[op.name], strategy.configs[op.name])
            mem, time_ns = mem + int(costs.mem_bytes[0]), time_ns + int(costs.compute_ns[0])
            mem += sum(kept_for_consumers(found, view, op, tensor, consumers.get(tensor.name, [])) for tensor in op.outputs)
    return mem, time_ns + sum(entry.time_ns(path_finder) for entry in cost_entries(view))


def kept_for_consumers(
    found: ModelFrontier, view: StrategyView, op: Operator, tensor: Tensor, consumers: list[Consumer]
) -> int:
    """The bytes that are kept of a tensor since gradients of those who take it read it."""
    costing = found.costing
    is_paid = (
        tensor.name in costing.saved_as_produced
        or op.type in ("Variable", "Const")
        or viewed_operand(op, tensor.name) is not None
    )
    left, shared = view.layout(tensor), view.strategy.shared.get(tensor.name)
    readers = [consumer for consumer in consumers if costing.reads(consumer)]
    node_of = {each.name: i for i, (node, _) in enumerate(found.built.nodes) for each in node.operators}
    together = len({node_of.get(consumer.name, consumer.name) for consumer in consumers}) == 1

    def of_copy(source: Layout, target: Layout, of_source: int) -> int:
        return of_source if source == target or is_view(source, target) else shard_bytes(tensor, target)

    def is_regathered(consumer: Consumer) -> bool:
        return view.is_regathered(view.graph.operators[consumer.name], consumer.position)

    shard = 0 if is_paid else shard_bytes(tensor, left)
    wanted = {consumer: sharding_of(view, tensor, consumer).layout for consumer in readers}
    if not readers:
        return 0
    if shared is None:
        if len(consumers) > 1:
            return shard + sum(of_copy(left, wanted[consumer], 0) for consumer in readers)
        return shard if is_regathered(readers[0]) else of_copy(left, wanted[readers[0]], shard)
    if Copy(tensor.name) in view.strategy.regathered:
        return shard + sum(
            0 if is_regathered(consumer) else of_copy(shared.layout, wanted[consumer], 0) for consumer in readers
        )
    lies_there = [shared.layout == wanted[consumer] or is_view(shared.layout, wanted[consumer]) for consumer in readers]
    if not together and not any(lies_there):
        return sum(of_copy(shared.layout, wanted[consumer], 0) for consumer in readers)
    if len(readers) == 1 and not is_paid and not together:
        return of_copy(shared.layout, wanted[readers[0]], shard_bytes(tensor, shared.layout))
    of_consumers = sum(of_copy(shared.layout, wanted[consumer], 0) for consumer in readers)
    return of_copy(left, shared.layout, shard) + of_consumers


@pytest.mark.parametrize(("name", "space"), first(2, CHARGED))
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


@pytest.mark.parametrize(("name", "space"), first(3, CHARGED))
def test_points_with_regathered_copies_cost_what_their_strategies_are_charged(name, space):
    found = find_frontier(model_of(name), named("v100-1x4"), 4, space=space, without=["remat"])
    n_regathered = 0
    for point in range(0, len(found), max(1, len(found) // 5)):
        states = found.found.strategies[point]
        strategy = found.built.strategy(states)
        n_regathered += len(strategy.regathered)
        cost = int(found.found.mem_bytes[point]), int(found.found.time_ns[point])
        assert cost_from_scratch(found, strategy) == cost
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
                search(frontier.built.allowing(lambda op, config, c=configs: c[op.name] == config).problem)
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
        assert found.found.exact and least.exact
        assert found.found.time_ns[0] == least.time_ns


@pytest.mark.usefixtures("graphs_as_built")
@pytest.mark.parametrize("algorithm", BASELINES)
@pytest.mark.parametrize("function", first(1, [zoo.mlp, zoo.cnn]))
def test_plans_run_with_one_devices_numbers(function, algorithm):
    model = zoo.record(function, "adam")
    found = find_frontier(model.model, named("v100-1x4"), 4, algorithm=algorithm)
    for point in {0, len(found) - 1}:
        plan = plans_of(found).plan(point)
        view = StrategyView(model.graph, plan.stages[0].strategy, model.model.backward.gradients)
        train_and_check(engine_of(model, view, plan.stages[0].path_finder(PlainCosts()), EmulatedBackend(plan.mesh)), model)


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
