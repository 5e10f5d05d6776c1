"""Gradients in fewer operators are TensorFlow's own, bit by bit."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given

from tensoropt.ir.graph import Operator, Tensor
from tensoropt.lowering.gradient_overrides import lean_gradient

Shape = tuple[int, ...]
BROADCASTING = ("Add", "AddV2", "Mul", "RealDiv", "SquaredDifference", "Sub")


def operator(op_type: str, shape: Shape, dtype: str) -> Operator:
    return Operator("op", op_type, (), (Tensor("op:0", shape, dtype),))


@st.composite
def broadcast_shapes(draw: Any) -> tuple[Shape, Shape]:
    whole = draw(st.lists(st.integers(1, 4), max_size=4))
    one = [draw(st.sampled_from((1, extent))) for extent in whole]
    other = [extent if a == 1 else draw(st.sampled_from((1, extent))) for a, extent in zip(one, whole, strict=True)]
    missing = draw(st.integers(0, len(whole)))
    pair = tuple(one), tuple(other[missing:])
    return pair if draw(st.booleans()) else pair[::-1]


def values(shape: Shape, dtype: str, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.5, 2.0, shape).astype(dtype)


def gradients(
    make: Any, operands: list[np.ndarray], asked: tuple[int, ...], op: Operator | None, unknown: bool = False
) -> tuple[list[np.ndarray], int]:
    """The gradients of the operands that are asked for, and how many operators there are; by TensorFlow without ``op``."""
    specs = [tf.TensorSpec([None] * x.ndim if unknown else x.shape, x.dtype) for x in operands]

    def body(*given: tf.Tensor) -> list[tf.Tensor]:
        if op is None:
            result = make(*given)
        else:
            with lean_gradient(op, asked):
                result = make(*given)
        # Weights, so that gradients differ from place to place.
        weights = tf.cumsum(tf.ones_like(tf.reshape(result, [-1])))
        total = tf.reduce_sum(tf.reshape(result, [-1]) * weights)
        return tf.gradients(total, [given[position] for position in asked])

    function = tf.function(body, input_signature=specs, autograph=False).get_concrete_function()
    found = function(*map(tf.constant, operands))
    return [each.numpy() for each in found], len(function.graph.get_operations())


@given(
    st.sampled_from(BROADCASTING), broadcast_shapes(), st.sampled_from(((0,), (1,), (0, 1))), st.integers(0, 99),
    st.sampled_from(("float32", "float64", "float16")),
)
def test_lean_gradients_of_broadcasting_operators_equal_tensorflows(
    op_type: str, shapes: tuple[Shape, Shape], asked: tuple[int, ...], seed: int, dtype: str
) -> None:
    operands = [values(shape, dtype, seed + i) for i, shape in enumerate(shapes)]
    op = operator(op_type, np.broadcast_shapes(*shapes), dtype)

    def make(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        if op_type == "SquaredDifference":
            return tf.raw_ops.SquaredDifference(x=x, y=y)
        return getattr(tf.raw_ops, op_type)(x=x, y=y)

    lean, n_lean = gradients(make, operands, asked, op)
    expected, n_expected = gradients(make, operands, asked, None)
    assert n_lean <= n_expected
    for got, wanted in zip(lean, expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data(), st.booleans(), st.integers(0, 99))
def test_lean_gradients_of_means_equal_tensorflows(
    shape: list[int], data: st.DataObject, keep_dims: bool, seed: int
) -> None:
    dims = data.draw(st.lists(st.integers(0, len(shape) - 1), unique=True))
    dims = [dim - len(shape) if data.draw(st.booleans()) else dim for dim in dims]
    operands = [values(tuple(shape), "float32", seed)]

    def make(x: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.Mean(input=x, axis=tf.constant(dims, tf.int32), keep_dims=keep_dims)

    op = operator("Mean", (1,), "float32")
    (lean,), n_lean = gradients(make, operands, (0,), op)
    (expected,), n_expected = gradients(make, operands, (0,), None)
    assert n_lean <= n_expected
    np.testing.assert_array_equal(lean, expected)


@pytest.mark.parametrize("shapes", [((3, 4), (1, 4)), ((3, 4), (4,)), ((3, 4), (3, 4))])
def test_lean_gradients_with_unknown_extents(shapes: tuple[Shape, Shape]) -> None:
    """Extents that differ between ranks are unknown; operands of one rank in such a dimension aren't broadcast."""
    operands = [values(shape, "float32", i) for i, shape in enumerate(shapes)]
    op = operator("Mul", (3, 4), "float32")

    def make(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        known = [[extent if extent == 1 else None for extent in shape] for shape in shapes]
        return tf.ensure_shape(x, known[0]) * tf.ensure_shape(y, known[1])

    lean, _ = gradients(make, operands, (0, 1), op, unknown=True)
    expected, _ = gradients(make, operands, (0, 1), None)
    for got, wanted in zip(lean, expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_a_constant_gets_no_gradient() -> None:
    """Half of what TensorFlow emits for a division is the gradient of the divisor."""
    operands = [values((4, 5), "float32", 0)]

    def make(x: tf.Tensor) -> tf.Tensor:
        return x / 3.0

    _, n_lean = gradients(make, operands, (0,), operator("RealDiv", (4, 5), "float32"))
    _, n_expected = gradients(make, operands, (0,), None)
    assert n_lean <= n_expected - 5
