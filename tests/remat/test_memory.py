"""A rank's peak, by TensorFlow's profiler, falls where operators are rematerialized."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import tensorflow as tf
from helpers import zoo
from helpers.strategies import engine_of, feeds_of, training_fetch

from tensoropt.lowering.resharding.backends import CommunicatingBackend
from tensoropt.profiling.hardware import named
from tensoropt.profiling.trace import StepTrace, traced_step
from tensoropt.rules.registry import rule_of
from tensoropt.rules.rule import configs
from tensoropt.runtime.collectives.single import SingleCommunicator
from tensoropt.sharding.resharding import PathFinder, PlainCosts
from tensoropt.sharding.strategy import Strategy, StrategyView

HARDWARE = named("v100-1x1")
BATCH, WIDTH, LAYERS = 1024, 256, 6
MEGABYTE = 4 * BATCH * WIDTH


def deep() -> zoo.Built:
    """Layers of a product and elementwise operators, each of which keeps a megabyte or two."""
    api = tf.compat.v1
    x = value = api.placeholder(api.float32, [BATCH, WIDTH], name="x")
    for i in range(LAYERS):
        hidden = api.tanh(api.matmul(value, api.get_variable(f"w{i}", [WIDTH, WIDTH], api.float32)))
        gated = api.sigmoid(hidden) * api.exp(-hidden)
        value = api.multiply(gated, api.square(hidden), name=f"end{i}")
    drawn = np.random.default_rng(0).normal(size=(zoo.N_BATCHES, BATCH, WIDTH)).astype(np.float32)
    return zoo.Built(api.reduce_mean(value), {x: tuple(drawn)}, ())


def view_of(model: zoo.Recorded, is_rematerialized: bool) -> StrategyView:
    """The strategy on one device; all but the results with which layers end may be rematerialized."""
    mesh = HARDWARE.mesh(1)
    chosen = {name: configs(rule_of(op), mesh)[0] for name, op in model.graph.operators.items()}
    inside = frozenset(name for name in chosen if not name.startswith("end"))
    return model.model.view(Strategy(mesh, chosen, rematerialized=inside if is_rematerialized else frozenset()))


def trace_of(model: zoo.Recorded, view: StrategyView, in_order: bool) -> StepTrace:
    backend = CommunicatingBackend(view.strategy.mesh, 0, SingleCommunicator())
    engine = engine_of(model, view, PathFinder(PlainCosts()), backend, in_order)
    fetch, feeds = training_fetch(model), feeds_of(model.graph, model.batches[0])
    for _ in range(2):
        engine.run(fetch, feeds)
    gc.collect()
    return traced_step(lambda: engine.run(fetch, feeds))


@pytest.mark.parametrize("in_order", [False, True])
def test_rematerialized_results_are_not_saved(in_order: bool) -> None:
    """Five of the six residuals of a layer are alive for one layer at a time."""
    model = zoo.record(deep, "sgd")
    kept, again = (trace_of(model, view_of(model, each), in_order).peak_bytes for each in (False, True))
    assert kept - again >= (LAYERS - 2) * 5 * MEGABYTE
    assert again <= (LAYERS + 5 + 4) * MEGABYTE
