"""Sums of small gradients, many in one collective: the same bits, fewer collectives, and none that waits for itself."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from helpers import zoo
from helpers.large import first
from helpers.searches import find_frontier
from helpers.strategies import engine_of, feeds_of, training_fetch
from hypothesis import given, settings
from hypothesis import strategies as st

from tensoropt.ir.graph import Tensor
from tensoropt.lowering.resharding.backends import EmulatedBackend
from tensoropt.lowering.resharding.reshard import Collective
from tensoropt.profiling.hardware import named
from tensoropt.profiling.hardware_costs import CollectiveCosts
from tensoropt.program import backward
from tensoropt.program.invariants import check_program
from tensoropt.program.step import step_program
from tensoropt.program.tasks import OVERLAPPABLE, RESHARD
from tensoropt.reschedule.layout import Layout
from tensoropt.rules.rule import OperandSharding
from tensoropt.runtime.engine import Engine
from tensoropt.sharding.resharding import BUCKET_BYTES, SMALL_BYTES, PathFinder, PlainCosts, bucket_share_ns, resharding_of
from tensoropt.sharding.strategy import StrategyView

HARDWARE = named("v100-1x2")
MESH = HARDWARE.mesh(2)
COSTS = CollectiveCosts(HARDWARE, MESH)


def data_parallel(model: zoo.Recorded) -> StrategyView:
    found = find_frontier(model.model, HARDWARE, 2, algorithm="data-parallel")
    return model.model.view(found.stage(0).strategy)


def trained(engine: Engine, model: zoo.Recorded) -> tuple[list[np.ndarray], tuple[Collective, ...]]:
    losses = [engine.run(training_fetch(model), feeds_of(model.graph, batch))[0][0] for batch in model.batches]
    log = engine.function(training_fetch(model), tuple(feeds_of(model.graph, model.batches[0]))).log
    values = [variable.numpy() for entry in engine.state() for variable in entry.variables]
    return [*losses, *values], log


@pytest.mark.parametrize(
    ("function", "in_order"),
    first(2, [(zoo.cnn, True), (zoo.fused_cnn, False), (zoo.mlp, False), *((f, True) for f in (zoo.mlp, zoo.fused_cnn))]),
)
def test_a_bucket_gives_the_bits_of_separate_sums(
    function: Callable[..., zoo.Built], in_order: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = zoo.record(function, "adam")
    view = data_parallel(model)

    def run(uses_buckets: bool) -> tuple[list[np.ndarray], tuple[Collective, ...]]:
        path_finder = PathFinder(PlainCosts(), uses_buckets=uses_buckets)
        return trained(engine_of(model, view, path_finder, EmulatedBackend(MESH), in_order), model)

    alone, each = run(False)
    together, joined = run(True)
    (full,) = (entry for entry in joined if entry.together)
    monkeypatch.setattr(backward, "BUCKET_BYTES", 8 * math.prod(full.shape) // 4)
    by_few, several = run(True)
    for one, other, third in zip(alone, together, by_few, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(one, third)
    assert not any(entry.together for entry in each)
    n_summed = [sum(len(entry.parts) for entry in log) for log in (each, joined, several)]
    assert n_summed == [len(each)] * 3 and len(joined) < len(several) < len(each)
    assert all(entry.is_overlappable and entry.kind == "all_reduce" for entry in joined if entry.together)


def test_all_buckets_are_sent_before_the_updates() -> None:
    """And each variable is updated by its sum: the checker knows of which operands a gradient is."""
    model = zoo.record(zoo.mlp, "sgd")
    program = step_program(data_parallel(model), PathFinder(PlainCosts()))
    check_program(program, model.graph)
    (bucket,) = [task for task in program.tasks if len(task.writes) > 1 and task.work == RESHARD]
    assert bucket.stream == OVERLAPPABLE
    assert {value.site.name for value in bucket.writes} == {value.site.name for value in bucket.reads}


@given(st.integers(1, 4 * SMALL_BYTES), st.sampled_from([(), (0,)]), st.booleans())
@settings(deadline=None)
def test_what_goes_into_a_bucket_costs_its_share_of_one(extent: int, unreduced: tuple[int, ...], of_variable: bool) -> None:
    axes = tuple(MESH.axes[place] for place in unreduced)
    tensor, whole = Tensor("t:0", (extent,), "float32"), Layout.replicated(MESH, 1)
    resharding = resharding_of(tensor, whole, OperandSharding(whole, axes), is_variable=of_variable)
    path_finder = PathFinder(COSTS)
    paths = path_finder.paths(resharding)
    assert paths.shares_bucket == (of_variable and bool(axes) and 4 * extent <= SMALL_BYTES)
    if paths.shares_bucket:
        assert paths.backward is not None and [step.kind for step in paths.backward.steps] == ["all_reduce"]
        share_ns = math.floor(COSTS.time_ns("all_reduce", MESH, axes, BUCKET_BYTES) * 4 * extent / BUCKET_BYTES)
        assert path_finder.time_ns(resharding) == bucket_share_ns(resharding, COSTS) == share_ns
    else:
        assert path_finder.time_ns(resharding) == PathFinder(COSTS, uses_buckets=False).time_ns(resharding)


def test_a_gradient_with_further_consumers_is_not_deferred() -> None:
    """Other collectives wait for the gradient of a shared copy, or of a variable that is split finer than its copy."""
    axis = MESH.axes[0]
    tensor, whole = Tensor("v:0", (8,), "float32"), Layout.replicated(MESH, 1)
    split = Layout(MESH, ((axis,),))
    finer = resharding_of(tensor, split, OperandSharding(whole, (axis,)), is_variable=True)
    shared = resharding_of(tensor, whole, OperandSharding(whole, (axis,)), returning=(axis,), is_variable=True)
    assert not finer.shares_bucket and not shared.shares_bucket
