"""Recommenders whose tables don't fit the limit of one rank: the search splits them, with the numbers of plain Keras.

A DLRM is that of the gallery, in tests/examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest
from helpers.large import first
from keras import layers, ops
from trainer.models import assert_same_weights

import tensoropt

BATCH, WIDTH, LARGE, SMALL = 16, 8, 3000, 400
Made = tuple[keras.Model, Any]

pytestmark = pytest.mark.usefixtures("float64")


def ids(name: str) -> Any:
    return keras.Input((), dtype="int32", name=name)


def two_tower() -> Made:
    """Users and items, of which those of the other samples are the negatives."""
    user, item = ids("user"), ids("item")
    towers = [layers.Dense(4)(layers.Embedding(size, WIDTH)(each)) for size, each in ((LARGE, user), (SMALL, item))]
    scores = ops.matmul(towers[0], ops.transpose(towers[1]))
    return keras.Model([user, item], scores), keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def wide_and_deep() -> Made:
    """A weight for each category, beside a network on their vectors."""
    user, item = ids("user"), ids("item")
    wide = layers.Embedding(LARGE, 1)(user) + layers.Embedding(SMALL, 1)(item)
    vectors = [layers.Embedding(LARGE, WIDTH)(user), layers.Embedding(SMALL, WIDTH)(item)]
    deep = layers.Dense(1)(layers.Dense(8, activation="relu")(layers.Concatenate()(vectors)))
    return keras.Model([user, item], wide + deep), keras.losses.BinaryCrossentropy(from_logits=True)


def data(model: keras.Model) -> tuple[list[np.ndarray], np.ndarray]:
    """Three batches in which few categories are frequent and most are never seen."""
    random, n = np.random.default_rng(0), 3 * BATCH
    known = {
        "user": np.minimum(random.zipf(1.2, n) - 1, LARGE - 1).astype("int32"),
        "item": random.integers(0, SMALL, n).astype("int32"),
    }
    clicks = random.integers(0, 2, (n, 1)).astype("float64")
    is_two_tower = model.output.shape[-1] != 1
    return [known[each.name] for each in model.inputs], np.arange(n) % BATCH if is_two_tower else clicks


def made(model: Callable[[], Made]) -> Made:
    keras.utils.set_random_seed(1)
    return model()


@pytest.mark.parametrize(
    ("model", "optimizer", "n_copies"),
    first(1, [(two_tower, lambda: keras.optimizers.SGD(0.1), 1), (wide_and_deep, lambda: keras.optimizers.Ftrl(0.1), 4)]),
)
def test_tables_that_do_not_fit_one_rank_are_split(
    model: Callable[[], Made], optimizer: Callable[[], Any], n_copies: int
) -> None:
    expected, loss = made(model)
    x, y = data(expected)
    expected.compile(optimizer(), loss, jit_compile=False)
    history = expected.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history["loss"]

    table_bytes = sum(int(np.prod(weight.shape)) * 8 for weight in expected.weights if "embeddings" in weight.path)
    options: dict[str, Any] = {"memory": int(0.75 * n_copies * table_bytes), "batch_size": BATCH, "cluster": "v100-1x2"}
    with pytest.raises(tensoropt.InputError, match=r"no plan fits .*Variable '.*embeddings' \("):
        tensoropt.parallelize(made(model)[0], optimizer(), loss, parallelism=1, **options)
    trainer = tensoropt.parallelize(made(model)[0], optimizer(), loss, collectives="emulated", **options)
    tables = [op for op in trainer.plan.operators if op.type == "Variable" and "embeddings" in op.name]
    assert any(op.config.used_axes for op in tables), trainer.plan
    found = trainer.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history["loss"]
    np.testing.assert_allclose(found, history, rtol=1e-9)
    assert_same_weights(trainer.get_weights(), expected.get_weights(), 1e-9)
    np.testing.assert_allclose(trainer.predict(x, BATCH, verbose=0), expected.predict(x, BATCH, verbose=0), rtol=1e-9)
    if n_copies < 4:  # Ftrl moves every row
        assert not list(made_of_size(trainer, [variable.shape for variable in large_shards(trainer)]))


def large_shards(trainer: Any) -> Sequence[Any]:
    engine = trainer.ranks.execution.engine
    return [each for name, shards in engine.states[0].variables.items() if "embeddings" in name for each in shards]


def made_of_size(trainer: Any, shapes: Sequence[Any]) -> list[Any]:
    """The results of a step's operators that are as large as a rank's shard of a table, and that something uses."""
    engine = trainer.ranks.execution.engine
    graphs = [built.call.graph for (fetch, *_), built in engine._functions.items() if fetch.train_steps]
    assert graphs
    results = [result for graph in graphs for op in graph.get_operations() for result in op.outputs]
    return [result for result in results if result.shape in shapes and result.consumers()]
