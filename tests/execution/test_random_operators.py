"""Models that draw, look up, mask and scatter: one device's numbers."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import tensorflow as tf
from helpers import zoo
from helpers.large import first
from helpers.strategies import (
    assert_variables,
    engine_of,
    local_shards,
    random_router,
    random_strategy,
    train_and_check,
)

from tensoropt.lowering.resharding.backends import EmulatedBackend
from tensoropt.reschedule.mesh import Mesh


def drawing() -> zoo.Built:
    """Places mixed under a causal mask, dropout from a key and from a state, and rows added up by class."""
    api, rng = tf.compat.v1, np.random.default_rng(3)
    tokens = api.placeholder(tf.int32, [6, 5], name="tokens")
    seed = api.placeholder(tf.int64, [2], name="seed")
    table = api.get_variable("table", [7, 6], tf.float64)
    w = api.get_variable("w", [6, 9], tf.float64)
    # Not a constant, so that the mask isn't folded.
    scores = api.get_variable("scores", [5, 5], tf.float64)
    embedded = tf.nn.experimental.stateless_dropout(tf.gather(table, tokens), 0.3, seed=seed)
    places = tf.linalg.band_part(tf.exp(scores), -1, 0)
    mixed = tf.einsum("qk,...kd->...qd", places / tf.reduce_sum(places, -1, keepdims=True), embedded)
    hidden = tf.nn.dropout(tf.tanh(mixed + 0.1 * tf.random.normal([6, 5, 6], dtype=tf.float64, seed=4)), 0.4, seed=5)
    values, _ = tf.math.top_k(hidden @ w, 4)
    by_class = tf.math.unsorted_segment_sum(tf.reduce_sum(tf.reverse(values, [1]), -1), tokens[:, 0], 7)
    loss = tf.reduce_mean(tf.square(by_class - 0.5))
    batches = tuple(rng.integers(0, 7, (6, 5)).astype(np.int32) for _ in range(zoo.N_BATCHES))
    seeds = tuple(np.array([1, step]) for step in range(zoo.N_BATCHES))
    return zoo.Built(loss, {tokens: batches, seed: seeds}, (loss,))


@cache
def recorded() -> zoo.Recorded:
    return zoo.record(drawing, "momentum")


MESHES = (Mesh.of(4), Mesh.of(2, 2), Mesh.of(3))


@pytest.mark.usefixtures("graphs_as_built")
@pytest.mark.parametrize("seed", first(3, range(9)))
def test_random_operators_give_one_device_numbers(seed: int) -> None:
    mesh = MESHES[seed % 3]
    view = random_strategy(recorded(), mesh, seed)
    engine = engine_of(recorded(), view, random_router(seed), EmulatedBackend(mesh))
    train_and_check(engine, recorded())
    assert_variables(recorded(), view, local_shards(engine))
