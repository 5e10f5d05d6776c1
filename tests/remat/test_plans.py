"""Plans and frontiers say what is rematerialized, and refuse what can't be; a search can do without."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from helpers.searches import Plans, find_frontier, plans_of

import tensoropt
from tensoropt import zoo
from tensoropt.common.errors import InputError
from tensoropt.ft import INFEASIBLE, Budget
from tensoropt.ft.pareto import reduce_unsorted
from tensoropt.profiling.hardware import named
from tensoropt.tools.offline import record


@pytest.fixture(scope="module")
def found() -> Plans:
    model = record(lambda: zoo.vgg16(batch=64, image=32), "vgg16").model
    return plans_of(find_frontier(model, named("v100-1x2"), 2, budget=Budget(seconds=1.0)))


def test_operators_and_reshardings_come_to_the_plan_s_time(found: Plans) -> None:
    for point in range(0, len(found), max(1, len(found) // 8)):
        plan = found.plan(point)
        total = sum(op.time_us for op in plan.operators) + sum(each.time_us for each in plan.reshardings)
        assert total == pytest.approx(plan.time_us + plan.overlap_time_us, rel=1e-9)
        again = {op.name for op in plan.operators if op.is_rematerialized}
        assert again == plan.stages[0].strategy.rematerialized
        assert all(0 <= op.rematerialization_us < op.time_us for op in plan.operators if op.is_rematerialized and op.time_us)


def test_a_frontier_file_has_rematerialization_for_every_point(found: Plans, tmp_path: Path) -> None:
    plans = {point: found.plan(point) for point in range(0, len(found), max(1, len(found) // 8))}
    found.save(tmp_path / "frontier.json")
    loaded = tensoropt.load_frontier(tmp_path / "frontier.json")
    for point, plan in plans.items():
        assert loaded.plan(point).to_json() == plan.to_json()


def test_a_plan_says_what_is_rematerialized(found: Plans) -> None:
    plan = found.smallest()
    told = plan.explain().split("rematerialized in the backward pass")[1].split("\n\n")[0]
    assert all(op.type in told or "other types" in told for op in plan.operators if op.is_rematerialized)
    assert "rematerialized in the backward pass" not in found.fastest().explain()


def test_a_plan_that_rematerializes_a_source_is_refused(found: Plans) -> None:
    plan, model = found.smallest(), found.without_stages[0].model
    for kind, refusal in (("Variable", "an operator of this type never is"), ("Const", "an operator of this type never is")):
        operators = list(plan.operators)
        place = next((i for i, op in enumerate(operators) if op.type == kind), None)
        if place is not None:
            operators[place] = replace(operators[place], is_rematerialized=True)
            with pytest.raises(InputError, match=refusal):
                replace(plan, stages=(replace(plan.stages[0], operators=tuple(operators)),)).check_for(model)


def test_rematerialization_lowers_memory_and_no_point_is_above_one_without(found: Plans) -> None:
    """The search without is the first half of the one with; its points are there, or better ones.

    Of those that are shown, which are in one order by memory and by peak, one may be left out.
    """
    (own,) = found.without_stages
    without = find_frontier(own.model, own.hardware, 2, budget=Budget(seconds=1.0), without=["remat"])
    assert without.built.transient is None and not without.stage(0).strategy.rematerialized
    assert found.found.mem_bytes[0] < without.found.mem_bytes[0] and without.found.exact
    searched, searched_without = own.certified, without.certified
    for mem_bytes, time_ns in zip(searched_without.mem_bytes, searched_without.time_ns, strict=True):
        assert searched.time_ns[searched.mem_bytes <= mem_bytes].min() <= time_ns


def chain() -> tf.Tensor:
    api = tf.compat.v1
    value = api.placeholder(tf.float32, [64, 8], name="x")
    value = tf.tanh(tf.matmul(value, api.get_variable("w", [8, 8])))
    for _ in range(3):
        value = tf.tanh(value)
    return tf.reduce_sum(value)


def test_against_every_strategy_of_a_tiny_model() -> None:
    """The bound is below all strategies at what they take, and the frontier within the gap that it tells."""
    model = record(chain, "chain").model
    frontier = find_frontier(model, named("v100-1x2"), 2, space="compact", budget=Budget(seconds=2.0))
    built, found = frontier.built, frontier.certified
    assert built.transient is not None
    options = [range(node.n_states) for node in built.problem.nodes]
    assert np.prod([len(each) for each in options]) < 2e6
    every = np.array(list(product(*options)), np.int32)
    mem, time_ns = np.zeros((2, len(every)), np.int64)
    for i, node in enumerate(built.problem.nodes):
        mem, time_ns = mem + node.mem_bytes[every[:, i]], time_ns + node.time_ns[every[:, i]]
    for edge in built.problem.edges:
        pair = every[:, edge.source], every[:, edge.target]
        mem = np.minimum(mem + edge.mem_bytes[pair], INFEASIBLE)
        time_ns = np.minimum(time_ns + edge.time_ns[pair], INFEASIBLE)
    allowed = (mem < INFEASIBLE) & (time_ns < INFEASIBLE)
    every, mem, time_ns = every[allowed], mem[allowed], time_ns[allowed]
    mem = mem + built.missing_bytes(every)
    time_ns = time_ns - built.overlap_ns(every)
    best = reduce_unsorted(mem, time_ns)
    gap = 1 + found.worst_gap
    for at_least, least_ns in zip(mem[best], time_ns[best], strict=True):
        fitting = found.time_ns[found.mem_bytes <= at_least * gap]
        assert len(fitting) and fitting.min() <= least_ns * gap
        if found.bound is not None:
            below = found.bound.mem_bytes <= at_least
            assert (below & (found.bound.time_ns <= least_ns)).any()
    costs = set(zip(mem.tolist(), time_ns.tolist(), strict=True))
    assert all(pair in costs for pair in zip(found.mem_bytes.tolist(), found.time_ns.tolist(), strict=True))


def test_without_zero_no_parameter_is_gathered() -> None:
    model = record(lambda: zoo.lenet5(batch=64), "lenet5").model
    found = plans_of(find_frontier(model, named("v100-1x2"), 2, budget=Budget(seconds=1.0), without=["zero"]))
    variables = {op.result.name for op in model.graph.variables}
    for point in range(0, len(found), max(1, len(found) // 8)):
        for each in found.plan(point).reshardings:
            if each.tensor in variables:
                assert not each.forward.communicates
