"""Functions over tensors and variables, captured and trained on emulated ranks: the numbers of plain TensorFlow.

Every function is trained for three steps by a plan on two devices and by ``tf.GradientTape`` on one, in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensoropt
from tensoropt.frontend.tracing.capture import Capture

EMULATED: Any = {"cluster": "v100-1x4", "parallelism": 2, "collectives": "emulated"}
RATE = 0.125  # exact in every type
EXACT = 1e-10


def variable(name: str, *shape: int, trainable: bool = True) -> tf.Variable:
    values = np.random.default_rng(len(name)).normal(size=shape) / 2
    return tf.Variable(values, name=name, dtype=tf.float64, trainable=trainable)


def reals(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def by_hand(function: Callable[..., tf.Tensor], trained: Sequence[tf.Variable], *arguments: Any) -> list[float]:
    """The losses of three steps of gradient descent on one device; the variables are left as they are afterwards."""
    losses = []
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = function(*map(tf.constant, arguments))
        for each, gradient in zip(trained, tape.gradient(loss, trained), strict=True):
            each.assign_sub(RATE * tf.convert_to_tensor(gradient))
        losses.append(float(loss))
    return losses


def hold(function: Callable[..., tf.Tensor], variables: Sequence[tf.Variable], *arguments: Any, force: Any = None) -> Any:
    """Train by a plan and by hand from the same values: losses and all variables are equal."""
    signature = [tf.TensorSpec(value.shape, value.dtype) for value in map(np.asarray, arguments)]
    first = [each.numpy() for each in variables]
    captured = tensoropt.capture(function, signature)
    trainer = tensoropt.parallelize(captured, keras.optimizers.SGD(RATE), force=force, **EMULATED)
    losses = [trainer.step(*arguments) for _ in range(3)]
    trainer.export()
    trained = [each.numpy() for each in variables]
    for each, value in zip(variables, first, strict=True):
        each.assign(value)
    expected = by_hand(function, [each for each in variables if each.trainable and each.dtype.is_floating], *arguments)
    np.testing.assert_allclose(losses, expected, rtol=EXACT)
    for each, value in zip(variables, trained, strict=True):
        np.testing.assert_allclose(value, each.numpy(), rtol=EXACT, atol=EXACT, err_msg=each.name)
    return trainer


def test_calls_within_calls_are_inlined() -> None:
    w, b = variable("w", 6, 5), variable("b", 5)

    @tf.function
    def shifted(x: tf.Tensor) -> tf.Tensor:
        return x + b

    @tf.function(jit_compile=True)
    def dense(x: tf.Tensor) -> tf.Tensor:
        return shifted(tf.matmul(x, w))

    trainer = hold(lambda x: tf.reduce_mean(tf.square(tf.tanh(dense(x)))), [w, b], reals(8, 6))
    assert {op.type for op in trainer.plan.operators} >= {"MatMul", "AddV2", "Tanh"}
    assert not any("Call" in op.type for op in trainer.plan.operators)


def test_what_a_function_closes_over_is_a_constant() -> None:
    w, mask = variable("w", 6), tf.constant(reals(8, 6))
    hold(lambda x: tf.reduce_sum(tf.square(x * mask - w)), [w], reals(8, 6))


def test_updates_and_reads_after_them_keep_their_order() -> None:
    """A step that reads a moving average, moves it, and reads it again."""
    w, average, count = variable("w", 5), variable("average", 5, trainable=False), tf.Variable(0, name="count")

    def function(x: tf.Tensor) -> tf.Tensor:
        centred = x - average
        average.assign(0.9 * average + 0.1 * tf.reduce_mean(x, 0))
        count.assign_add(1)
        return tf.reduce_mean(tf.square(centred * w - average * tf.cast(count, tf.float64)))

    hold(function, [w, average, count], reals(8, 5))


def test_complex_variables_are_trained() -> None:
    """Training uses Keras's own update, which rounds complex numbers to 64 bits."""
    values = np.random.default_rng(3).normal(size=(2, 6, 5))
    w, c = variable("w", 4, 6), tf.Variable(values[0] + 1j * values[1], name="c")
    first, x = [w.numpy(), c.numpy()], reals(8, 4)

    def function(x: tf.Tensor) -> tf.Tensor:
        product = tf.cast(tf.matmul(x, w), tf.complex128) @ c
        return tf.reduce_mean(tf.square(tf.abs(product + 1.0))) + tf.reduce_sum(tf.math.imag(c))

    captured = tensoropt.capture(function, [tf.TensorSpec(x.shape, x.dtype)])
    trainer = tensoropt.parallelize(captured, keras.optimizers.SGD(RATE), **{**EMULATED, "parallelism": 4})
    losses = [trainer.step(x) for _ in range(3)]
    trainer.export()
    trained = [w.numpy(), c.numpy()]
    w.assign(first[0])
    c.assign(first[1])
    optimizer, expected = keras.optimizers.SGD(RATE), []
    optimizer.build([w, c])
    for _ in range(3):
        with tf.GradientTape() as tape:
            expected.append(float(loss := function(tf.constant(x))))
        optimizer.apply(tape.gradient(loss, [w, c]), [w, c])
    np.testing.assert_allclose(losses, expected, rtol=EXACT)
    for value, each, before in zip(trained, (w, c), first, strict=True):
        assert not np.allclose(each.numpy(), before)
        np.testing.assert_allclose(value, each.numpy(), rtol=EXACT)


def test_an_operator_without_a_gradient_is_refused() -> None:
    w = variable("w", 4, 4)

    def function(x: tf.Tensor) -> tf.Tensor:
        volume = tf.cast(tf.reshape(x @ w, [2, 4, 2, 2]), tf.float32)
        return tf.reduce_sum(tf.abs(tf.signal.rfft3d(volume)))

    said = r"^RFFT3D 'rfft3d' \(test_tracing.py:\d+\) stands between the loss and a variable .* has no gradient for it"
    with pytest.raises(tensoropt.InputError, match=said):
        hold(function, [w], reals(8, 4))


def test_a_variable_that_is_read_after_it_was_assigned_is_refused() -> None:
    """TensorFlow follows a gradient to such a read as to any other."""
    w = variable("w", 6)

    def function(x: tf.Tensor) -> tf.Tensor:
        first = tf.reduce_sum(w * x)
        w.assign(0.5 * w)
        return first + tf.reduce_sum(tf.square(w * x))

    with pytest.raises(tensoropt.InputError, match=r"with respect to 'w' as it was before and as it is after an update"):
        hold(function, [w], reals(8, 6))


def test_an_embedding_reads_rows_of_a_variable() -> None:
    table, w = variable("table", 11, 6), variable("w", 6, 11)
    words = np.random.default_rng(0).integers(0, 11, (8, 3))

    def function(words: tf.Tensor) -> tf.Tensor:
        found = tf.nn.embedding_lookup(table, words)
        return tf.reduce_mean(tf.square(tf.matmul(tf.reshape(found, [24, 6]), w)))

    hold(function, [table, w], words)
    hold(function, [table, w], words, force={"GatherV2": {"rows": 2}})


def test_structures_of_arguments() -> None:
    w = variable("w", 4, 3)
    x, y = reals(8, 4), reals(8, 3)

    def function(batch: dict[str, tf.Tensor], scale: tf.Tensor) -> tf.Tensor:
        return scale * tf.reduce_mean(tf.square(tf.matmul(batch["x"], w) - batch["y"]))

    specs = {"x": tf.TensorSpec([8, 4], tf.float64), "y": tf.TensorSpec([8, 3], tf.float64)}
    captured = tensoropt.capture(function, [specs, tf.TensorSpec([], tf.float64)])
    trainer = tensoropt.parallelize(captured, keras.optimizers.SGD(RATE), **EMULATED)
    expected = float(2 * np.mean((x @ w.numpy() - y) ** 2))
    assert trainer.step({"x": x, "y": y}, np.float64(2)) == pytest.approx(expected, rel=EXACT)


def test_branches_that_constants_decide_are_gone() -> None:
    w = variable("w", 5)

    def function(x: tf.Tensor) -> tf.Tensor:
        chosen = tf.cond(tf.shape(x)[0] > 4, lambda: x * w, lambda: x - w)
        return tf.reduce_sum(tf.square(chosen))

    trainer = hold(function, [w], reals(8, 5))
    types = {op.type for op in trainer.plan.operators}
    assert "Mul" in types and "Sub" not in types and not any("If" in each or "Cond" in each for each in types)


def test_every_rank_loads_its_share_of_the_batch() -> None:
    w = variable("w", 6, 5)
    trainer = hold(lambda x: tf.reduce_mean(tf.square(tf.matmul(x, w))), [w], reals(8, 6))
    (loaded,) = (op for op in trainer.plan.operators if op.type == "Placeholder")
    assert str(loaded.config) == "d0:a"


def test_a_batch_smaller_than_the_ranks_is_loaded_by_every_rank() -> None:
    w = variable("w", 6, 5)
    hold(lambda x: tf.reduce_mean(tf.square(tf.matmul(x, w))), [w], reals(3, 6))


def test_variables_of_one_name_stay_apart() -> None:
    one, other = variable("w", 6), variable("w", 6)
    capture = Capture()
    capture.add(lambda x: x * one + other, [tf.TensorSpec([8, 6], tf.float64)])
    assert sorted(capture.variables) == ["w", "w_1"]
    assert capture.name(one) != capture.name(other)


_TABLE = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(tf.constant(["a"]), tf.constant([1.0], tf.float64)), tf.constant(0.0, tf.float64)
)


def _product(x: tf.Tensor, w: tf.Variable) -> tf.Tensor:
    return tf.reduce_sum(x * w)


@pytest.mark.parametrize(
    ("function", "said", "signature"),
    [
        (lambda x, w: tf.reduce_sum(tf.py_function(lambda value: value, [x], tf.float64) * w),
         r"EagerPyFunc '.*' \(test_tracing.py:\d+\).*calls Python", None),
        (lambda x, w: tf.reduce_sum(tf.map_fn(lambda row: _TABLE.lookup(tf.strings.as_string(row)), x) * w),
         r"test_tracing.py:\d+\).*an iterator or a table.*do that before the model", None),
        (lambda x, w: x * w, r"loss must be one floating-point number.*\(8, 6\)", None),
        (lambda x, w: tf.reduce_sum(x), "depends on no trainable variable", None),
        (_product, "expected every extent to be known", [tf.TensorSpec([None, 6], tf.float64)]),
        (_product, "takes a tf.TensorSpec for each argument", [np.zeros([8, 6])]),
        (_product, r"a list of a tf.TensorSpec for each argument, got 7", 7),
    ],
)
def test_what_cannot_be_captured_gets_a_sentence(function: Callable[..., Any], said: str, signature: Any) -> None:
    w = variable("w", 6)
    signature = [tf.TensorSpec([8, 6], tf.float64)] if signature is None else signature
    with pytest.raises(tensoropt.InputError, match=said):
        tensoropt.parallelize(tensoropt.capture(lambda *x: function(*x, w), signature), "sgd", **EMULATED)


def test_a_step_takes_what_the_signature_says() -> None:
    w = variable("w", 6)
    captured = tensoropt.capture(lambda x: tf.reduce_sum(x * w), [tf.TensorSpec([8, 6], tf.float64, name="x")])
    trainer = tensoropt.parallelize(captured, "sgd", **EMULATED)
    with pytest.raises(tensoropt.InputError, match=r"shape \[4, 6\] for 'x', expected \[8, 6\]"):
        trainer.step(reals(4, 6))
