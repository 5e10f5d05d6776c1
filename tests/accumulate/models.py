"""Models whose batch can be sliced, and random strategies for their slices."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import tensorflow as tf
from helpers import zoo
from helpers.strategies import random_strategy, uncut_engine

from tensoropt.lowering.resharding.backends import EmulatedBackend
from tensoropt.lowering.resharding.reshard import Backend
from tensoropt.reschedule.mesh import Mesh
from tensoropt.rules.registry import rule_of
from tensoropt.rules.rule import why_invalid
from tensoropt.runtime.engine import Engine
from tensoropt.sharding.micro_batches import of_micro_batches
from tensoropt.sharding.model import Model
from tensoropt.sharding.resharding import PathFinder
from tensoropt.sharding.strategy import StrategyView

BATCH = 8


def looking_up(api: Any = tf.compat.v1) -> zoo.Built:
    """A table that is only looked up, twice; a constant and a weight for each sample; a moving average of the loss."""
    words = api.placeholder(api.int64, [BATCH, 3], name="words")
    others = api.placeholder(api.int32, [BATCH], name="others")
    table = api.get_variable("table", [6, 4], api.float64)
    w = api.get_variable("w", [4, 5], api.float64)
    weights = api.constant(np.linspace(0.5, 1.5, BATCH), api.float64)
    found = api.reduce_sum(api.gather(table, words), 1) + api.gather(table, others)
    each = api.reduce_sum(api.square(api.matmul(found, w)), -1) * weights
    loss = api.reduce_sum(each) / BATCH
    average = api.get_variable("average", [], api.float64, initializer=api.zeros_initializer(), trainable=False)
    update = api.assign(average, 0.9 * average + 0.1 * loss)
    drawn = tuple(np.random.default_rng([11, i]) for i in range(zoo.N_BATCHES))
    inputs = {
        words: tuple(rng.integers(0, 6, (BATCH, 3)) for rng in drawn),
        others: tuple(rng.integers(0, 6, BATCH).astype(np.int32) for rng in drawn),
    }
    return zoo.Built(loss, inputs, (api.reduce_max(found),), (update,))


def dropping_out(api: Any = tf.compat.v1) -> zoo.Built:
    """Dropout in both ways in which TensorFlow draws: from seeds that are given, and from seeds of the operator."""
    x = api.placeholder(api.float64, [BATCH, 6], name="x")
    w1 = api.get_variable("w1", [6, 7], api.float64)
    w2 = api.get_variable("w2", [7, 3], api.float64)
    hidden = tf.nn.experimental.stateless_dropout(api.matmul(x, w1), 0.4, seed=[3, 4])
    loss = api.reduce_mean(api.square(api.matmul(api.tanh(hidden), w2)))
    return zoo.Built(loss, {x: zoo._reals(12, BATCH, 6)}, ())


def tied(api: Any = tf.compat.v1, n_rows: int = 37) -> zoo.Built:
    """A table of so many rows, looked up twice, once by what is computed of a feed, and a factor of the last product."""
    words = api.placeholder(api.int64, [BATCH, 2], name="words")
    others = api.placeholder(api.float64, [BATCH], name="others")
    table = api.get_variable("table", [n_rows, 4], api.float64)
    w1 = api.get_variable("w1", [4, 6], api.float64)
    w2 = api.get_variable("w2", [6, 4], api.float64)
    found = api.reduce_sum(api.gather(table, words), 1) + api.gather(table, api.cast(others, api.int32))
    hidden = api.matmul(api.tanh(api.matmul(found, w1)), w2)
    penalty = 0.1 * api.reduce_sum(api.square(table))
    loss = api.reduce_mean(api.square(api.matmul(hidden, table, transpose_b=True))) + penalty
    drawn = tuple(np.random.default_rng([13, i]) for i in range(zoo.N_BATCHES))
    inputs = {
        words: tuple(rng.integers(0, n_rows, (BATCH, 2)) for rng in drawn),
        others: tuple(rng.integers(0, n_rows, BATCH).astype(np.float64) for rng in drawn),
    }
    return zoo.Built(loss, inputs, (api.reduce_max(found),))


FUNCTIONS: dict[str, Callable[[], zoo.Built]] = {
    "mlp": partial(zoo.mlp, batch=BATCH), "attention": partial(zoo.attention, batch=BATCH),
    "windows": partial(zoo.windows, batch=BATCH), "looking_up": looking_up, "tied": tied,
    "dropping_out": dropping_out,
}  # fmt: skip


@cache
def recorded(name: str, optimizer: str) -> zoo.Recorded:
    return zoo.record(FUNCTIONS[name], optimizer)


@cache
def sliced(name: str, optimizer: str, n: int) -> zoo.Recorded:
    """The same with the graph of one of ``n`` slices."""
    model = recorded(name, optimizer)
    return replace(model, model=Model(of_micro_batches(model.graph, n), model.model.backward))


def random_view(
    name: str, optimizer: str, n: int, mesh: Mesh, seed: int, **shares: float
) -> tuple[StrategyView, StrategyView]:
    """A random strategy that micro-batches and the full batch can have, on the full graph and on that of one micro-batch."""
    graph, rng = recorded(name, optimizer).graph, random.Random(seed)
    while True:
        of_micro_batch = random_strategy(sliced(name, optimizer, n), mesh, rng.randrange(10**6), **shares)
        configs = of_micro_batch.strategy.configs
        if not any(why_invalid(rule_of(graph.operators[each]), config) for each, config in configs.items()):
            return recorded(name, optimizer).model.view(of_micro_batch.strategy), of_micro_batch


def engine_in_micro_batches(
    model: zoo.Recorded,
    views: tuple[StrategyView, StrategyView],
    path_finder: PathFinder,
    backend: Backend | None = None,
    in_order: bool = False,
) -> Engine:
    whole, of_micro_batch = views
    backend = backend or EmulatedBackend(whole.strategy.mesh)
    return uncut_engine(whole, path_finder, backend, lambda name: model.first_values[name], in_order, of_micro_batch)
