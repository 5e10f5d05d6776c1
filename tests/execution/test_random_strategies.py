"""Random strategies, on which suites of one device's numbers rest: they are random enough, and a wrong number is noticed."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import zoo
from helpers.strategies import assert_variables, engine_of, local_shards, random_router, random_strategy, train_and_check

from tensoropt.lowering.resharding.backends import EmulatedBackend
from tensoropt.reschedule.mesh import Mesh


def test_a_wrong_number_is_noticed() -> None:
    """A value that is off in the tenth digit, and a replica that is off in the last bit."""
    model, mesh = zoo.record(zoo.mlp, "sgd"), Mesh.of(4)
    view = random_strategy(model, mesh, 0)
    engine = engine_of(model, view, random_router(0), EmulatedBackend(mesh))
    train_and_check(engine, model)
    shards = local_shards(engine)
    assert_variables(model, view, shards)
    off = {**shards, "w1": [shard * (1 + 1e-9) for shard in shards["w1"]]}
    with pytest.raises(AssertionError, match="variable w1 is off"):
        assert_variables(model, view, off)
    replicated = next(op for op in model.graph.variables if len(view.layout(op.result).used_axes) < len(mesh.axes))
    last_bit = {**shards, replicated.name: [np.nextafter(shards[replicated.name][0], 9), *shards[replicated.name][1:]]}
    with pytest.raises(ValueError, match="replicas"):
        assert_variables(model, view, last_bit)


def test_strategies_and_paths_are_as_random_as_they_should_be() -> None:
    """Over the seeds: every config of an operator, shared and own reshardings, detours, sums kept pending."""
    model = zoo.record(zoo.cnn, "sgd")
    views = [random_strategy(model, Mesh.of(4), seed) for seed in range(100)]
    conv = {view.strategy.configs["Conv2D_1"] for view in views}
    assert len(conv) >= 10
    shared = [len(view.strategy.shared) for view in views]
    assert min(shared) < max(shared) and all(shared)
    assert len({view.layout(model.graph.operators["Conv2D_1"].result) for view in views}) >= 8
    assert random_router(1).choose is not random_router(2).choose
