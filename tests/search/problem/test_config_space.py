"""Spaces: which operators follow which, which configs there are, and what alike nodes share."""

from __future__ import annotations

from itertools import groupby, product

import numpy as np
import pytest
import tensorflow as tf
from helpers.searches import find_frontier
from search.baselines.models import model_of
from zoo.small import SMALL

from tensoropt.costs.config_costs import costs_of_config
from tensoropt.costs.operator_costs import costing_of
from tensoropt.ft import search
from tensoropt.ir.graph import SOURCES, Graph
from tensoropt.profiling.hardware import named
from tensoropt.reschedule.mesh import Mesh
from tensoropt.rules.registry import rule_in_micro_batches, rule_of
from tensoropt.rules.rule import NONE, Config, why_invalid
from tensoropt.search.problem.builder import ProblemBuilder
from tensoropt.search.problem.config_space import COMPACT, FULL, MOST_FACTORS, nodes_of, space_for, states_of, unit_orders
from tensoropt.search.problem.fusion_groups import FusionGroup, fusion_groups, is_contraction
from tensoropt.search.problem.strategy_problem import StrategyProblem
from tensoropt.sharding.consumers import consumers_of
from tensoropt.tools.offline import record


def nodes_in(graph: Graph) -> tuple[FusionGroup, ...]:
    rules = {op.name: rule_of(op) for op in graph.step_operators}
    return fusion_groups(graph, rules, consumers_of(graph), frozenset())


def problem_of(name: str, cluster: str, space: str) -> StrategyProblem:
    model, hardware = model_of(name), named(cluster)
    return ProblemBuilder(costing_of(model, hardware, hardware.mesh()), hardware.mesh(), space).build()


@pytest.mark.parametrize("name", SMALL)
def test_every_operator_is_in_one_node(name: str) -> None:
    graph = model_of(name).graph
    inside = [op.name for node in nodes_in(graph) for op in node.operators]
    assert sorted(inside) == sorted(op.name for op in graph.step_operators if op.updates is None)


@pytest.mark.parametrize("name", SMALL)
def test_a_node_has_one_contraction_at_most(name: str) -> None:
    for node in nodes_in(model_of(name).graph):
        assert sum(is_contraction(op, rule_of(op)) for op in node.operators) <= 1


def test_operators_that_differ_in_saved_results_share_no_states() -> None:
    """One product's result is read by way of a view, and counts where it lies; the other's counts with its resharding."""

    def products() -> tf.Tensor:
        x = tf.compat.v1.placeholder(tf.float32, [16, 32])
        w = [tf.compat.v1.get_variable(f"w{i}", [32, 32]) for i in range(3)]
        b = tf.matmul(tf.matmul(tf.tanh(tf.matmul(x, w[0])), w[1]), w[2])
        return tf.reduce_mean(tf.square(tf.matmul(tf.reshape(b, [8, 64]), tf.compat.v1.get_variable("last", [64, 4]))))

    model, hardware = record(products, "products").model, named("v100-1x4")
    costing = costing_of(model, hardware, hardware.mesh())
    for space in (FULL, COMPACT):
        built = ProblemBuilder(costing, hardware.mesh(), space).build()
        for node, states in built.nodes:
            total = np.zeros(states.n_states, np.int64)
            for op, of_op, index in zip(node.operators, states.configs, states.index, strict=True):
                each = [int(costs_of_config(costing, op, rule_of(op), config).mem_bytes[0]) for config in of_op]
                total += np.array(each, np.int64)[index]
            assert total.tolist() == states.mem_bytes.tolist(), node.operators[0].name


@pytest.mark.parametrize("name", ["wide_resnet", "transformer", "llama3_8b"])
def test_a_residual_connection_ends_in_another_node(name: str) -> None:
    """No path leaves a node and comes back: else what it leaves could not be rescheduled for what comes back."""
    graph = model_of(name).graph
    nodes = nodes_in(graph)
    node_of = {op.name: i for i, node in enumerate(nodes) for op in node.operators}
    before: list[set[int]] = []
    reached: dict[str, set[int]] = {}
    for op in graph.step_operators:
        if op.name in node_of and op.type not in SOURCES:
            makers = [graph.producers[t.name] for _, t in op.operands]
            came = set().union(*(reached.get(maker.name, set()) for maker in makers))
            outside = {node_of[m.name] for m in makers if m.type not in SOURCES} - {node_of[op.name]}
            through = set().union(
                *(reached[m.name] for m in makers if m.type not in SOURCES and node_of[m.name] in outside), outside
            )
            assert node_of[op.name] not in through, op.name
            reached[op.name] = came | outside
            before.append(came)
    assert any(len(node.operators) > 3 for node in nodes)


def test_units_of_a_level_can_still_have_every_number_of_axes() -> None:
    assert unit_orders(Mesh.of(2, 8)) == [((0,), (1,), (2,), (3,))]
    orders = unit_orders(Mesh.of(64, 8))
    assert orders[0] == ((0,), (1, 2), (3, 4, 5), (6,), (7, 8))
    assert len(orders) == len(set(orders)) == 4
    for order in orders:
        assert sorted(axis for unit in order for axis in unit) == list(range(9))


@pytest.mark.parametrize("cluster", ["v100-2x4", "v100-2x8"])
@pytest.mark.parametrize("name", ["vgg16", "transformer"])
def test_configs_of_the_compact_space(name: str, cluster: str) -> None:
    graph, mesh = model_of(name).graph, named(cluster).mesh()
    rules = {op.name: rule_of(op) for op in graph.step_operators}
    several = 0
    for node in nodes_in(graph):
        states = states_of(COMPACT, node, rules, mesh)
        assert len(set(states)) == len(states)
        for configs in states:
            for config in configs:
                runs = [name for name, _ in groupby(config.assignment) if name]
                assert len(runs) == len(set(runs)) <= MOST_FACTORS
                several += len(runs) > 1
    assert several > 0


@pytest.mark.parametrize("name", ["lenet5", "rnnlm"])
def test_forced_degrees_are_found_as_they_are_among_all_configs(name: str) -> None:
    graph, mesh, n_found = model_of(name).graph, Mesh.of(2, 6), 0
    rules = {op.name: rule_of(op) for op in graph.step_operators}
    for node in nodes_of(FULL, graph, rules, {}, frozenset()):
        every, names = states_of(FULL, node, rules, mesh), [*rules[node.operators[0].name].extents]
        for degrees in [{names[0]: 2}, {names[0]: 1, names[-1]: 6}, dict.fromkeys(names[:3], 2)] if names else []:
            asked = tuple(each for each in every if all(each[0].degree(name) == n for name, n in degrees.items()))
            assert states_of(COMPACT, node, rules, mesh, degrees) == asked
            n_found += len(asked)
    assert n_found


def test_alike_layers_share_their_arrays() -> None:
    built = problem_of("transformer", "v100-1x4", COMPACT)
    distinct = {id(states) for _, states in built.nodes}
    assert len(distinct) < 0.8 * len(built.nodes)
    costs = {id(edge.mem_bytes.base) for edge in built.problem.edges}
    assert len(costs) < 0.8 * len(built.problem.edges)


@pytest.mark.parametrize("name", ["lenet5", "vgg16", "rnnlm"])
def test_the_compact_frontier_is_never_below_the_full_one(name: str) -> None:
    full, compact = (search(problem_of(name, "v100-1x2", space).problem) for space in (FULL, COMPACT))
    assert full.exact and compact.exact
    for mem, time_ns in zip(compact.mem_bytes.tolist(), compact.time_ns.tolist(), strict=True):
        at = full.at(mem)
        assert at is not None
        assert full.time_ns[at] <= time_ns


def test_the_space_goes_by_size_unless_it_is_told() -> None:
    model = model_of("lenet5")
    assert space_for(model.graph, named("v100-1x2").mesh()) == FULL
    assert space_for(model.graph, named("v100-2x8").mesh()) == COMPACT
    told = find_frontier(model, named("v100-1x2"), 2, space=COMPACT)
    assert told.built.space == COMPACT
    chosen = told.built.strategy(told.found.strategies[0]).configs
    assert set(chosen) == {op.name for op in model.graph.step_operators if op.updates is None}


def test_what_equal_layers_may_have_at_the_full_batch_is_found_for_each_rule() -> None:
    hardware, model = named("v100-1x4"), model_of("transformer").in_micro_batches(2, 4)
    builder, valid = ProblemBuilder(costing_of(model, hardware, hardware.mesh()), hardware.mesh()), set[tuple[object, ...]]()
    options = dict[tuple[str, ...], tuple[Config, ...]]()
    for op in model.graph.full_batch.step_operators:
        names = NONE, *rule_of(op).extents
        configs = options.setdefault(names, tuple(Config(hardware.mesh(), of_axes) for of_axes in product(names, repeat=2)))
        found, rule = builder._are_valid(op, configs), rule_in_micro_batches(op, 2, 4)
        assert found.tolist() == [not why_invalid(rule, config) for config in configs]
        valid.add((names, found.tobytes()))
    assert len(builder._valid) < len(model.graph.step_operators) and len(valid) > len(options)
