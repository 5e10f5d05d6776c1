"""Costs of regathered copies; a search that may choose them finds nothing worse."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from helpers import zoo
from helpers.large import first
from helpers.searches import find_frontier
from helpers.strategies import random_router, random_strategy
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.layouts import all_layouts

from tensoropt import zoo as models
from tensoropt.costs.resharding_costs import ReshardingCosting, ResidualCharge, shard_bytes
from tensoropt.ft import Budget
from tensoropt.ft.problem import INFEASIBLE
from tensoropt.ir.graph import Tensor
from tensoropt.plan.build import cost_entries
from tensoropt.profiling.hardware import named
from tensoropt.profiling.hardware_costs import CollectiveCosts
from tensoropt.reschedule.layout import is_view, needs_communication
from tensoropt.reschedule.mesh import Mesh
from tensoropt.rules.rule import OperandSharding
from tensoropt.rules.shardings import Shardings
from tensoropt.search.frontiers.model_frontier import ModelFrontier
from tensoropt.tools.offline import record

HARDWARE = named("v100-1x4")
MESH = HARDWARE.mesh(4)
SMALL = {"lenet5": lambda: models.lenet5(batch=8), "mlp": lambda: zoo.mlp().loss, "attention": lambda: zoo.attention().loss}


@cache
def frontier(name: str, space: str, without: tuple[str, ...], n_devices: int = 4) -> ModelFrontier:
    model = record(SMALL[name], name).model
    asked = {"space": space, "budget": Budget(seconds=20.0), "without": (*without, "remat")}
    return find_frontier(model, named(f"v100-1x{n_devices}"), n_devices, **asked)


@pytest.mark.parametrize(
    ("name", "space", "n_devices"),
    first(3, [("attention", "compact", 2), *(("lenet5", *each) for each in [("full", 2), ("compact", 4), ("full", 4)]),
              ("attention", "compact", 4)]),
)
def test_a_frontier_with_the_choice_is_never_above_the_one_without(name: str, space: str, n_devices: int) -> None:
    """Of attention in the full space it isn't found exactly in seconds."""
    kept, chosen = (frontier(name, space, without, n_devices) for without in (("reuse",), ()))
    of_kept, of_chosen = kept.certified, chosen.certified
    assert of_kept.exact and of_chosen.exact and not kept.built.choices and chosen.built.choices
    for mem_bytes, time_ns in zip(of_kept.mem_bytes, of_kept.time_ns, strict=True):
        fitting = of_chosen.time_ns[of_chosen.mem_bytes <= mem_bytes]
        assert len(fitting) and fitting.min() <= time_ns
    assert chosen.costs.mem_bytes.min() <= kept.costs.mem_bytes.min()


def test_copies_are_regathered_with_little_memory_and_not_without_a_limit() -> None:
    found = frontier("lenet5", "compact", ())
    assert found.stage(0).strategy.regathered and not found.stage(len(found) - 1).strategy.regathered
    least, without = found.found, frontier("lenet5", "compact", ("reuse",)).found
    assert least.mem_bytes[0] < without.mem_bytes[0]


# Laws


@st.composite
def reshardings(draw: st.DrawFn) -> tuple[Tensor, OperandSharding, OperandSharding]:
    shape = tuple(draw(st.lists(st.integers(4, 9), min_size=1, max_size=2)))
    layouts = all_layouts(MESH, shape)
    source, target = (draw(st.sampled_from(layouts)) for _ in range(2))
    unreduced = draw(st.sampled_from([None, *[(axis,) for axis in MESH.axes if axis not in target.used_axes]]))
    return Tensor("t:0", shape, "float32"), OperandSharding(source, ()), OperandSharding(target, unreduced)


@given(reshardings())
@settings(deadline=None)
def test_the_copy_or_its_source_is_saved(case: tuple[Tensor, OperandSharding, OperandSharding]) -> None:
    tensor, source, sharding = case
    steps = CollectiveCosts(HARDWARE, MESH)
    costing = ReshardingCosting(MESH, steps)
    back = (
        []
        if sharding.unreduced is None
        else [sharding.layout.with_partial(sharding.unreduced), source.layout.with_partial(())]
    )
    numbers = costing.numbers
    costing.expect(tensor.shape, tensor.item_bytes, numbers.of([source.layout, sharding.layout, *back]))
    ends = Shardings.of(numbers, [source]), Shardings.of(numbers, [sharding])
    of = {each: [int(cost[0, 0]) for cost in costing.matrix(tensor, *ends, each)] for each in ResidualCharge}
    shard, copy = shard_bytes(tensor, source.layout), shard_bytes(tensor, sharding.layout)
    no_gradient = Shardings.of(numbers, [OperandSharding(sharding.layout, None)])
    forward = costing.matrix(tensor, ends[0], no_gradient, ResidualCharge.NOTHING)[1][0, 0]
    # Kept: one of the two; a source that is kept anyway costs nothing more.
    assert of[ResidualCharge.NOTHING][0] == 0 and of[ResidualCharge.COPY][0] in (shard, copy)
    assert of[ResidualCharge.COPY_OF_SAVED][0] in (0, of[ResidualCharge.COPY][0])
    assert of[ResidualCharge.REGATHERED][0] == shard and of[ResidualCharge.REGATHERED_OF_SAVED][0] == 0
    if source.layout == sharding.layout:
        assert of[ResidualCharge.COPY] == of[ResidualCharge.REGATHERED]
    # A second resharding takes what the first one did, and keeping takes no time.
    time_ns = of[ResidualCharge.NOTHING][1]
    assert of[ResidualCharge.COPY][1] == of[ResidualCharge.COPY_OF_SAVED][1] == time_ns
    assert of[ResidualCharge.REGATHERED][1] == of[ResidualCharge.REGATHERED_OF_SAVED][1] == time_ns + forward
    # Of a shared copy that is made again a consumer's is too, unless that communicates.
    is_local = not needs_communication(source.layout, sharding.layout)
    assert of[ResidualCharge.FROM_REMATERIALIZED] == ([0, time_ns + forward] if is_local else [copy, time_ns])
    # A shared copy that isn't kept can't be read.
    lies_there = source.layout == sharding.layout or is_view(source.layout, sharding.layout)
    assert of[ResidualCharge.FROM_SHARED_UNREAD] == ([INFEASIBLE, INFEASIBLE] if lies_there else [copy, time_ns])


@given(st.integers(0, 10**6), st.sampled_from([0.3, 1.0]))
@settings(deadline=None, max_examples=25)
def test_a_strategy_pays_for_each_second_resharding_and_for_nothing_else(seed: int, share: float) -> None:
    model = recorded()
    view = random_strategy(model, Mesh.of(2, 2), seed, share_regathered=share)
    path_finder = random_router(seed)
    n_regathered = 0
    for entry in cost_entries(view):
        again = path_finder.paths(entry.resharding).forward.time_ns(path_finder.costs, entry.resharding.item_bytes)
        assert entry.time_ns(path_finder) - path_finder.time_ns(entry.resharding) == (again if entry.is_regathered else 0)
        n_regathered += entry.is_regathered
        if entry.is_regathered and not entry.is_shared:
            # What is made again is read by the gradient of the operator that takes it.
            op = view.graph.operators[entry.consumers[0]]
            positions = [i for i, tensor in op.operands if tensor.name == entry.tensor]
            assert any((op.name, i) in view.backward.residual_operands for i in positions)
    assert (n_regathered > 0) or share < 1.0


@cache
def recorded() -> zoo.Recorded:
    return zoo.record(zoo.attention, "sgd")


def test_points_cost_what_they_cost_alone() -> None:
    """The states that a strategy means lead back to its cost."""
    found = frontier("lenet5", "compact", ())
    for point in range(0, len(found), 7):
        strategy = found.built.strategy(found.found.strategies[point])
        states = found.built.states_of(strategy)
        assert found.built.strategy(states).regathered == strategy.regathered
        assert found.built.problem.cost(states.tolist()) == (found.found.mem_bytes[point], found.found.time_ns[point])
        assert np.array_equal(found.built.compute_ns(states[None]), found.costs.compute_ns[point : point + 1])
