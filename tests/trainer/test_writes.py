"""Steps that write variables by rows and slices, in branches and loops, and apply an optimizer every third time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensoropt
from tensoropt.frontend.tracing.capture import Capture
from tensoropt.profiling.hardware import Device, Hardware, LinkLevel

SLOW = Hardware("slow", Device("slow", 8 << 30, {"float32": 1e8}, 1e8), (LinkLevel("device", 3, 0.01, 1e12),))


class Written:
    """A model with variables of its own, and a step."""

    def __init__(self, kind: str) -> None:
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Dense(6, "tanh", dtype="float64"), keras.layers.Dense(1, dtype="float64")]
        self.kind, self.model = kind, keras.Sequential([keras.Input((6,), dtype="float64"), *layers])
        self.weights, self.optimizer = self.model.trainable_variables, keras.optimizers.Adam(0.01)
        self.optimizer.build(self.weights)
        self.state = tf.Variable(np.ones((12, 6)), trainable=False)
        self.sums = [tf.Variable(tf.zeros_like(each.value), trainable=False) for each in self.weights]
        self.count = tf.Variable(0, trainable=False)

    def apply(self, gradients: Any) -> None:
        self.optimizer.apply_gradients(zip(gradients, self.weights, strict=True))

    def every_third(self, gradients: Any) -> None:
        def apply() -> None:
            self.apply([each / 3.0 for each in self.sums])
            for each in self.sums:
                each.assign(tf.zeros_like(each))

        for total, each in zip(self.sums, gradients, strict=True):
            total.assign_add(each)
        tf.cond(self.count % 3 == 0, apply, lambda: None)

    def write(self, rows: tf.Tensor, ids: tf.Tensor) -> None:
        state, slices = self.state, tf.IndexedSlices(rows, ids)
        if self.kind == "centers":
            state.scatter_sub(tf.IndexedSlices(0.1 * (tf.gather(state, ids) - rows), ids))
        elif self.kind == "queue":
            state[self.count : self.count + 8].assign(rows)
        elif self.kind == "scatters":
            state.scatter_mul(slices)
            state.scatter_div(tf.IndexedSlices(2.0 + rows, ids))
            state.scatter_max(slices)
            state.scatter_nd_update(ids[:, None], tf.gather_nd(state, ids[:, None]) + rows)
            state.scatter_min(tf.IndexedSlices(rows + 0.5, ids))
            state.scatter_update(tf.IndexedSlices(rows + state.sparse_read(ids), ids))
        elif self.kind == "raw":
            raw, step = tf.raw_ops, tf.constant(0.1, tf.float64)
            state.scatter_nd_sub(ids[:, None], rows)
            raw.ResourceScatterNdMin(ref=state.handle, indices=ids[:, None], updates=rows + 0.5)
            raw.ResourceScatterNdMax(ref=state.handle, indices=ids[:, None], updates=rows)
            raw.ResourceApplyGradientDescent(var=state.handle, alpha=step, delta=tf.reduce_sum(rows) * state)
        elif self.kind == "branch":

            def even() -> None:
                state[2:4].assign(rows[:2] + state[1:3])
                state.assign_add(state)

            tf.cond(self.count % 2 == 0, even, lambda: [state.scatter_add(slices), None][1])
        elif self.kind == "loop":

            def body(k: tf.Tensor) -> tf.Tensor:
                state.scatter_nd_add([[k]], [tf.reduce_sum(rows, 0) + tf.reduce_sum(state)])
                return k + 1

            tf.while_loop(lambda k: k < 4, body, [0])
        elif self.kind == "weights":
            self.weights[0].value.scatter_nd_update([[0]], tf.zeros((1, 6), tf.float64))

    def step(self, x: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            errors = tf.square(self.model(x))[:, 0]
            loss = tf.reduce_mean(errors * tf.gather(self.state, ids)[:, 0])
        gradients = tape.gradient(loss, self.weights)
        self.count.assign_add(1)
        if self.kind == "every third":
            self.every_third(gradients)
        elif self.kind == "either":
            halves = [each / 2.0 for each in gradients]
            tf.cond(self.count % 3 == 0, lambda: self.apply(gradients), lambda: self.apply(halves))
        else:
            self.apply(gradients)
        self.write(self.model.layers[0](x) + errors[:, None], ids)
        return loss + tf.reduce_sum(self.state)

    def numbers(self, step: Callable[..., Any], export: Callable[[], Any]) -> list[np.ndarray]:
        drawn = np.random.default_rng(0)
        losses = [np.asarray(step(drawn.normal(size=(8, 6)), drawn.integers(0, 12, 8))) for _ in range(4)]
        export()
        return [*losses, self.state.numpy(), *self.model.get_weights(), *(each.numpy() for each in self.sums)]


KINDS = ["centers", "queue", "scatters", "raw", "branch", "loop", "weights", "every third", "either"]


@pytest.mark.parametrize("kind", KINDS)
def test_one_devices_numbers(kind: str) -> None:
    plain, ours = Written(kind), Written(kind)
    where = {"cluster": SLOW, "parallelism": 2 + len(kind) % 2, "collectives": "emulated"}
    step = tensoropt.training_step(ours.step, model=ours.model, optimizer=ours.optimizer, batch_size=8, **where)
    expected = plain.numbers(tf.function(plain.step), lambda: None)
    for found, wanted in zip(ours.numbers(step, lambda: step.export()), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-12)
    assert step.plan.n_collectives


def _adds_rows(model: Any, state: tf.Variable, x: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    loss = tf.reduce_mean(tf.square(model(x) - tf.gather(state, ids)[:, :2]))
    state.scatter_nd_add(ids[:, None], x)
    return loss


def _decides(model: Any, state: tf.Variable, x: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    loss = tf.reduce_mean(tf.square(model(x)))
    if loss > 0.5:
        loss *= 2.0
    return loss


def _compares_images(model: Any, state: tf.Variable, x: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    images = [tf.tile(each[:, None, :, None], (1, 12, 6, 1)) for each in (model(x), x[:, :2])]
    return 1.0 - tf.cast(tf.reduce_mean(tf.image.ssim(*images, 1.0)), tf.float64)


CASES = [(_adds_rows, 2, 1e-10), (_decides, 1, 1e-10), (_compares_images, 1, 1e-6)]


@pytest.mark.parametrize(("compute", "n", "tolerance"), CASES)
def test_steps_are_one_devices(compute: Callable[..., Any], n: int, tolerance: float) -> None:
    """Rows of micro-batches, Python that decides by a tensor, and shapes computed by TensorFlow (``ssim`` is in float32)."""
    losses = []
    for plan in (None, {"cluster": SLOW, "parallelism": 2, "collectives": "emulated", "micro_batches": n}):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((6,), dtype="float64"), keras.layers.Dense(2, dtype="float64")])
        optimizer, state = keras.optimizers.SGD(0.1), tf.Variable(np.ones((12, 6)), trainable=False)

        def step(x: tf.Tensor, ids: tf.Tensor, model=model, optimizer=optimizer, state=state) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = compute(model, state, x, ids)
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            return loss

        optimizer.build(model.trainable_variables)
        taken = {"model": model, "optimizer": optimizer, "batch_size": 8}
        run = tensoropt.training_step(step, **taken, **plan) if plan else tf.function(step)
        drawn = np.random.default_rng(0)
        losses.append([float(run(drawn.normal(size=(8, 6)), drawn.integers(0, 12, 8))) for _ in range(3)])
    np.testing.assert_allclose(*losses, rtol=tolerance)


def test_a_variable_that_is_only_gathered_from_is_known() -> None:
    table, capture = tf.Variable(np.ones((12, 6)), trainable=False), Capture()
    capture.add(lambda ids: tf.gather_nd(table, ids[:, None]), [tf.TensorSpec([8], tf.int64)])
    (found,) = capture.variables.values()
    assert found is table
