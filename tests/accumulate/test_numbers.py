"""What steps in micro-batches return, and what they are fed."""

from __future__ import annotations

import accumulate.models as models
import pytest
import tensorflow as tf
from helpers.large import first
from helpers.strategies import Link, assert_close, feeds_of, training_fetch
from oracles.shards import gather

from tensoropt.program.fetch import Fetch
from tensoropt.reschedule.mesh import Mesh
from tensoropt.sharding.resharding import PathFinder


@pytest.mark.parametrize("mesh", first(2, [Mesh.of(2), Mesh.of(2, 2), Mesh.of(1), Mesh.of(3)]), ids=str)
def test_fetches_of_a_step_are_of_the_full_batch_in_order(mesh: Mesh) -> None:
    """Whole, and in the pieces of the whole batch's layout, with and without a share of samples for each device."""
    model = models.recorded("mlp", "sgd")
    names = ("hidden:0", "accuracy:0", "x:0")
    tensors = [tensor for name in names if (tensor := model.graph.resolve(name)) is not None]
    for seed in range(2):
        views = models.random_view("mlp", "sgd", 2, mesh, seed)
        feeds = feeds_of(model.graph, model.batches[0])
        engine = models.engine_in_micro_batches(model, views, PathFinder(Link()))
        alone = engine.run(Fetch(tuple((tensor, False) for tensor in tensors)), feeds)
        step = training_fetch(model)
        wanted = tuple((tensor, is_local) for is_local in (False, True) for tensor in tensors)
        found = engine.run(Fetch(wanted, step.train_steps), feeds)
        for tensor, values, expected in zip(tensors, found, alone, strict=False):
            for value in values:
                assert_close(value, expected[0], 1e-12, tensor.name)
        for tensor, shards, expected in zip(tensors, found[len(tensors) :], alone, strict=True):
            layout = views[0].layout(tensor).with_partial(())
            assert_close(gather(shards, layout, tensor.shape), expected[0], 1e-12, f"pieces of {tensor.name}")


def test_dtype_of_what_is_fetched() -> None:
    """A sum over slices has the type of its tensor."""
    model = models.recorded("mlp", "sgd")
    engine = models.engine_in_micro_batches(model, models.random_view("mlp", "sgd", 4, Mesh.of(2), 5), PathFinder(Link()))
    (losses,) = engine.run(training_fetch(model), feeds_of(model.graph, model.batches[0]))
    assert tf.as_dtype(losses[0].dtype) == tf.float64 and losses[0].shape == ()
