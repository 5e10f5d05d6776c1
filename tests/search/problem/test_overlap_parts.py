"""A problem's overlappable reshardings against a strategy's own, and the search's use of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from helpers.large import first
from helpers.searches import find_frontier, plans_of
from search.baselines.models import model_of

import tensoropt
from tensoropt.costs.config_costs import costs_of_config
from tensoropt.costs.operator_costs import OperatorCosting, costing_of
from tensoropt.ft import Budget
from tensoropt.ft.problem import INFEASIBLE
from tensoropt.ir.graph import VARIABLE
from tensoropt.plan.build import cost_entries
from tensoropt.profiling.hardware import named
from tensoropt.search.frontiers.find_frontier import find_baseline
from tensoropt.search.frontiers.model_frontier import ModelFrontier
from tensoropt.search.problem.builder import ProblemBuilder
from tensoropt.search.problem.config_space import COMPACT, FULL
from tensoropt.sharding.consumers import consumers_of
from tensoropt.sharding.resharding import PathFinder
from tensoropt.sharding.strategy import StrategyView
from tensoropt.tools.offline import record

EXPOSED = 0.3
HARDWARE = replace(named("v100-2x2"), exposed_share=EXPOSED)
MODELS = ("lenet5", "rnn", "transformer", "wide_resnet")


@pytest.mark.parametrize("name", MODELS)
def test_overlappable_times_are_those_of_gradients_to_variables(name: str) -> None:
    """Random strategies, in the space whose nodes are operators: what is hidden is simulated from their reshardings."""
    model, mesh = model_of(name), HARDWARE.mesh()
    costing = costing_of(model, HARDWARE, mesh)
    built = ProblemBuilder(costing, mesh, FULL).build()
    rng = np.random.default_rng(0)
    hidden = []
    for _ in range(6):
        states = np.array([rng.integers(node.n_states) for node in built.problem.nodes], np.int32)
        view = model.view(built.strategy(states))
        expected = _hidden_ns(view, costing)
        (found,) = built.overlap_ns(states[None])
        assert found == expected
        hidden.append(expected)
    assert max(hidden) > 0


def _hidden_ns(view: StrategyView, costing: OperatorCosting) -> int:
    """A device that goes through the backward pass and a link that serves gradients in order, operator by operator."""
    graph, path_finder = view.graph, PathFinder(costing.reshardings.steps)
    program = {op_name: i for i, op_name in enumerate(graph.operators)}
    last_use = {
        tensor: min([program[t.name] for t in those if not (t.is_step or t.is_update)], default=0)
        for tensor, those in consumers_of(graph).items()
    }
    compute_ns, sent_ns = {}, {}
    for op in graph.step_operators:
        if op.updates is None and op.type != VARIABLE:
            costs = costs_of_config(costing, op, view.rules[op.name], view.strategy.configs[op.name])
            compute_ns[program[op.name]] = int(costs.backward_ns[0])
    for entry in cost_entries(view):
        if entry.tensor in graph.operators:
            # Inside of an operator: what an update takes, or an exchange that the operator waits for.
            op = graph.operators[entry.tensor]
            whole_ns = path_finder.time_ns(entry.resharding)
            if op.type == VARIABLE:
                position = last_use[op.result.name]
            elif op.name in graph.lookup_operators:
                position = program[op.name]
            else:
                continue
        elif entry.tensor in graph.made_of_variables:
            backward = path_finder.paths(entry.resharding).backward
            whole_ns = 0 if backward is None else backward.time_ns(path_finder.costs, entry.resharding.item_bytes)
            (consumer, *_) = entry.consumers
            position = last_use[entry.tensor] if entry.is_shared else program.get(consumer, len(program))
        else:
            continue
        sent_ns.setdefault(position, []).append(int(np.floor(whole_ns * (1 - EXPOSED))))
    device_ns = link_ns = 0
    for position in sorted({*compute_ns, *sent_ns}, reverse=True):
        device_ns += compute_ns.get(position, 0)
        for each_ns in sent_ns.get(position, ()):
            link_ns = max(link_ns, device_ns) + each_ns
    return sum(compute_ns.values()) + sum(sum(each) for each in sent_ns.values()) - max(device_ns, link_ns)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("space", [FULL, COMPACT])
def test_a_strategy_has_the_states_that_it_came_from(name: str, space: str) -> None:
    model, mesh = model_of(name), HARDWARE.mesh()
    built = ProblemBuilder(costing_of(model, HARDWARE, mesh), mesh, space).build()
    rng = np.random.default_rng(1)
    states = np.array([rng.integers(node.n_states) for node in built.problem.nodes], np.int32)
    again = built.states_of(built.strategy(states))
    for copy in built.shared:
        if not copy.is_unread.any():
            continue
        # Whether it is read follows from what takes it; a state may hold on to a copy that nobody reads.
        unread = copy.is_unread & np.array(
            [sharding == copy.shardings[again[copy.node]] for sharding in copy.shardings], bool
        )
        for state in np.flatnonzero(unread):
            other = [*again[: copy.node], state, *again[copy.node + 1 :]]
            assert built.problem.cost(again.tolist()) <= built.problem.cost(other)
        if copy.is_unread[again[copy.node]] or copy.is_unread[states[copy.node]]:
            states[copy.node] = again[copy.node]
    assert built.problem.cost(again.tolist()) == built.problem.cost(states.tolist())
    assert max(built.problem.cost(again.tolist())) < INFEASIBLE
    assert built.overlap_ns(again[None]) == built.overlap_ns(states[None])


def test_a_step_that_takes_a_tensor_twice_is_a_node_like_others() -> None:
    """Consumers of one node share a copy in the compact space, whose costs are the node's: here the step's own."""

    def twice() -> None:
        x = tf.compat.v1.placeholder(tf.float32, [16, 16])
        w = tf.compat.v1.get_variable("w", [16, 16])
        rate = tf.compat.v1.placeholder(tf.float32, [])
        loss = tf.reduce_mean(tf.square(tf.matmul(x, w)))
        tensoropt.MomentumOptimizer(rate, momentum=rate).minimize(loss)

    model = record(twice, "twice").model
    full, compact = (find_frontier(model, HARDWARE, 4, space=space).found.time_ns.min() for space in (FULL, COMPACT))
    assert full <= compact


def test_one_machine_of_several_hides_nothing() -> None:
    """The ranks of one machine wait for no link, so times measured between machines don't hold."""
    model = model_of("lenet5")
    assert costing_of(model, HARDWARE, HARDWARE.mesh(4)).reshardings.exposed_share == EXPOSED
    assert costing_of(model, HARDWARE, HARDWARE.mesh(2)).reshardings.exposed_share == 1
    alone = replace(named("v100-1x4"), exposed_share=EXPOSED)
    assert costing_of(model, alone, alone.mesh(2)).reshardings.exposed_share == EXPOSED


@pytest.fixture(scope="module", params=first(1, ("lenet5", "transformer", "rnn", "wide_resnet")))
def frontiers(request: pytest.FixtureRequest) -> tuple[ModelFrontier, ModelFrontier]:
    """Two problems of one model: times add up, or gradients are sent beside compute."""
    model, budget = model_of(request.param), Budget(seconds=2)
    apart = find_frontier(model, named("v100-2x2"), 4, budget=budget)
    beside = find_frontier(model, HARDWARE, 4, budget=budget)
    return apart, beside


def test_a_frontier_takes_what_is_hidden_off(frontiers: tuple[ModelFrontier, ModelFrontier]) -> None:
    apart, beside = frontiers
    costs = beside.costs
    assert (costs.time_ns == costs.compute_ns + costs.network_ns - costs.overlap_ns).all()
    assert costs.overlap_ns.any()
    assert not apart.costs.overlap_ns.any()
    assert costs.time_ns.min() <= apart.costs.time_ns.min()
    # The strategies of the other frontier are none that this one has missed.
    of_others = apart.certified.time_ns - beside.built.overlap_ns(apart.certified.strategies)
    for mem_bytes, time_ns in zip(apart.certified.mem_bytes, of_others, strict=True):
        bound = beside.certified.bound or beside.certified
        assert ((bound.mem_bytes <= mem_bytes) & (bound.time_ns <= time_ns)).any()
    assert beside.certified.median_gap < 0.1


def test_a_plan_s_strategy_has_states_of_the_same_costs(frontiers: tuple[ModelFrontier, ModelFrontier]) -> None:
    """A plan leaves shared copies out for which nothing is to be done."""
    _, found = frontiers
    for point in np.linspace(0, len(found.found) - 1, 5).round().astype(int).tolist():
        states = found.built.states_of(found.stage(point).strategy)
        expected = found.found.strategies[point]
        assert found.built.problem.cost(states.tolist()) == found.built.problem.cost(expected.tolist())
        assert found.built.overlap_ns(states[None]) == found.built.overlap_ns(expected[None])


def test_a_plan_keeps_what_is_hidden(frontiers: tuple[ModelFrontier, ModelFrontier]) -> None:
    _, beside = frontiers
    point = int(np.argmax(beside.costs.overlap_ns))
    plan = plans_of(beside).plan(point)
    assert plan.overlap_time_us > 0
    assert plan.time_us == pytest.approx(plan.compute_time_us + plan.network_time_us - plan.overlap_time_us)
    again = type(plan).from_json(plan.to_json())
    assert again.to_json() == plan.to_json()
    assert "at the same time" in plan.explain()
    assert "overlap" in plans_of(beside).table()


def test_sums_of_gradients_are_hidden_in_micro_batches() -> None:
    """They are sent after the last micro-batch, beside its backward pass, as without micro-batches."""
    found = find_frontier(model_of("lenet5"), HARDWARE, 4, budget=Budget(seconds=2), micro_batches=2)
    costs = found.costs
    assert costs.overlap_ns.any()
    assert (costs.time_ns == costs.compute_ns + costs.network_ns - costs.overlap_ns).all()
    assert plans_of(found).plan(int(np.argmax(costs.overlap_ns))).overlap_time_us > 0


def test_what_others_choose_is_shown_as_it_runs(frontiers: tuple[ModelFrontier, ModelFrontier]) -> None:
    apart, beside = frontiers
    plain, hidden = (find_baseline(frontier, "data-parallel").points[0] for frontier in (apart, beside))
    assert hidden.time_us == pytest.approx(plain.time_us - hidden.overlap_time_us)
    assert hidden.overlap_time_us > 0
