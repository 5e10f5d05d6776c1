"""Regathered copies: one device's numbers, each collective as it is charged, nothing saved."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf
from helpers import zoo
from helpers.strategies import Link, engine_of, feeds_of, train_and_check, training_fetch

from tensoropt.lowering.resharding.backends import EmulatedBackend
from tensoropt.lowering.resharding.path_callbacks import Runner
from tensoropt.reschedule.mesh import Mesh
from tensoropt.reschedule.path import Path
from tensoropt.rules.rule import Config
from tensoropt.sharding.resharding import PathFinder
from tensoropt.sharding.strategy import Copy, Strategy, StrategyView

ALIGNMENT = 64
PATIENCE_S = 2.0


@dataclass
class Watch:
    """Attributes:
    most: how many arrays may be there before it is waited for that TensorFlow's threads let go of what they are done with.
    n_alive: arrays that collectives of the step so far made and that are still there, at each collective.
    """

    most: int
    arrays: list[weakref.ref[np.ndarray]] = field(default_factory=list)
    n_alive: list[int] = field(default_factory=list)

    def look(self) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while True:
            gc.collect()
            n_alive = sum(each() is not None for each in self.arrays)
            if n_alive <= self.most or time.monotonic() > until_s:
                self.n_alive.append(n_alive)
                return
            time.sleep(0.001)
            tf.numpy_function(int, [], tf.int64)  # each such call lets go of arrays that TensorFlow is done with


@dataclass(frozen=True)
class Watched(EmulatedBackend):
    """Counts which of the arrays that collectives gave out are still there at each later one."""

    watch: Watch

    def runner(self, path: Path, text: str, reduction: str = "sum") -> Runner:
        run = super().runner(path, text, reduction)

        def watched(*shards: np.ndarray) -> Sequence[np.ndarray]:
            self.watch.look()
            memory, made = zip(*map(aligned, run(*shards)), strict=True)
            self.watch.arrays += map(weakref.ref, memory)
            return made

        return watched


def aligned(value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Memory, and a copy in it, which TensorFlow takes as it is: where it isn't aligned it makes a copy of its own."""
    memory = np.empty(value.nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    copy = memory[start : start + value.nbytes].view(value.dtype).reshape(value.shape)
    copy[...] = value
    return memory, copy


LAYERS, WIDTH = 6, 64


def deep() -> zoo.Built:
    """Layers of one width."""
    api = tf.compat.v1
    x = value = api.placeholder(tf.float64, [8, WIDTH], name="x")
    for i in range(LAYERS):
        value = tf.tanh(tf.matmul(value, api.get_variable(f"w{i}", [WIDTH, WIDTH], tf.float64)))
    drawn = tuple(np.random.default_rng(3).normal(size=(zoo.N_BATCHES, 8, WIDTH)))
    return zoo.Built(tf.reduce_sum(value), {x: drawn}, ())


def sharded(model: zoo.Recorded, mesh: Mesh, is_regathered: bool) -> StrategyView:
    """Batches and parameters split over all devices: each layer's parameter is gathered before its product."""
    axis_of = {"MatMul": "m", "Variable": "d0", "Placeholder": "d0", "Tanh": "d0", "Sum": "d0"}
    configs = {
        name: Config(mesh, (axis_of.get(op.type, "-"),) * len(mesh.axes)) for name, op in model.graph.operators.items()
    }
    products = [op for op in model.graph.operators.values() if op.type == "MatMul"]
    regathered = {Copy(tensor.name, op.name) for op in products for position, tensor in op.operands if position == 1}
    return model.model.view(Strategy(mesh, configs, {}, frozenset(regathered) if is_regathered else frozenset()))


def most_alive(is_regathered: bool, most: int) -> int:
    gc.freeze()  # what was there before isn't looked through at every collective
    model, mesh = zoo.record(deep, "sgd"), Mesh.of(2)
    view, backend = sharded(model, mesh, is_regathered), Watched(mesh, Watch(most))
    engine = engine_of(model, view, PathFinder(Link()), backend, in_order=True)
    feeds = feeds_of(model.graph, model.batches[0])
    engine.run(training_fetch(model), feeds)
    backend.watch.arrays.clear()
    backend.watch.n_alive.clear()
    engine.run(training_fetch(model), feeds)
    train_and_check(engine_of(model, view, PathFinder(Link()), EmulatedBackend(mesh)), model)
    return max(backend.watch.n_alive)


def test_regathered_copies_are_not_saved() -> None:
    """One or two gathered parameters are alive at once, on each of two ranks, instead of those of all layers but the
    first, whose operand gets no gradient.
    """
    assert most_alive(False, 9 * LAYERS) >= 2 * (LAYERS - 1)
    assert most_alive(True, 2 * 2) <= 2 * 2
