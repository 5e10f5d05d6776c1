"""A case: one operator as TensorFlow records it, with values for its operands, and short ways to write one down."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_library, op_def_registry

from tensoropt.frontend.importer import import_graph
from tensoropt.ir.graph import Operator

FLOAT = np.float64
SUMMED_EXACTLY = 2.0**-16
"""Numbers of 32 bits are multiples of this, so that the summands that they come in, which are integers but for the last,
add up to them exactly. What a box or a shift were off by otherwise, an operator may make many times as much of."""


@dataclass(frozen=True, slots=True)
class Input:
    """Random values of a shape: floats, or parts of complex numbers, from ``low`` to ``high``; whole numbers below ``high``;
    or booleans.
    """

    shape: tuple[int, ...]
    low: float = -2.0
    high: float = 2.0
    dtype: Any = FLOAT
    whole: bool = False
    is_distribution: bool = False

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        if self.dtype is np.bool_:
            return rng.random(self.shape) < 0.5
        if self.whole or np.issubdtype(self.dtype, np.integer):
            return np.asarray(rng.integers(int(self.low), int(self.high), self.shape)).astype(self.dtype)
        values = rng.uniform(self.low, self.high, self.shape)
        if self.dtype is np.float32:
            values = np.round(values / SUMMED_EXACTLY) * SUMMED_EXACTLY
        if np.issubdtype(self.dtype, np.complexfloating):
            values = values + 1j * rng.uniform(self.low, self.high, self.shape)
        if self.is_distribution:
            values = values / values.sum(-1, keepdims=True)
        return np.asarray(values).astype(self.dtype)


@dataclass(frozen=True, slots=True)
class Static:
    """An input that is a constant and steers the operator."""

    value: Any
    dtype: Any = np.int32


Given = Input | Static | tuple[Input, ...]


@dataclass(frozen=True, eq=False)
class Case:
    """One operator with values for its operands.

    Attributes:
        tolerance: relative to the largest value of what is compared.
        differentiable: False where TensorFlow has no gradient for the operator.
    """

    label: str
    type: str
    given: tuple[Given, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-10
    differentiable: bool = True

    def __str__(self) -> str:
        return self.label

    @property
    def seed(self) -> int:
        return zlib.crc32(self.label.encode())

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The operands, lists flattened."""
        flat: list[Input] = []
        for item in self.given:
            flat += list(item) if isinstance(item, tuple) else [item] if isinstance(item, Input) else []
        return tuple(flat)

    @cached_property
    def values(self) -> tuple[np.ndarray, ...]:
        rng = np.random.default_rng(self.seed)
        return tuple(item.draw(rng) for item in self.inputs)

    @cached_property
    def op(self) -> Operator:
        """The operator as TensorFlow records it and the importer reads it."""
        with tf.Graph().as_default() as graph:
            # Something to wait for: the importer takes an Identity that waits for nothing away.
            waited_for = tf.compat.v1.placeholder(tf.float32, [], name="waited_for")
            arguments: dict[str, Any] = {}
            for argument, item in zip(op_def_registry.get(self.type).input_arg, self.given, strict=True):
                arguments[argument.name] = _recorded(item)
            with tf.control_dependencies([waited_for]):
                op_def_library.apply_op(self.type, name="case", **arguments, **(_defaults(self.type) | self.attrs))
        return import_graph(graph, ()).operators["case"]


def _recorded(item: Given) -> Any:
    if isinstance(item, Static):
        return tf.constant(item.value, item.dtype)
    if isinstance(item, tuple):
        return [_recorded(part) for part in item]
    return tf.compat.v1.placeholder(item.dtype, item.shape)


def _defaults(op_type: str) -> dict[str, Any]:
    """The attributes of an operator type that have default values and don't follow from operands."""
    definition = op_def_registry.get(op_type)
    inferred = {a for item in definition.input_arg for a in (item.type_attr, item.number_attr, item.type_list_attr)}
    defaults = {}
    for attr in definition.attr:
        if attr.name in inferred or not attr.HasField("default_value"):
            continue
        kind = attr.default_value.WhichOneof("value")
        value = getattr(attr.default_value, kind)
        if kind == "list":
            value = [*value.i, *value.s, *value.f]
        defaults[attr.name] = tf.as_dtype(value) if kind == "type" else value
    return defaults


def f(*shape: int, low: float = -2.0, high: float = 2.0) -> Input:
    return Input(shape, low, high)


def complexes(*shape: int) -> Input:
    return Input(shape, dtype=np.complex128)


def positive(*shape: int) -> Input:
    return Input(shape, 0.3, 2.5)


def away(*shape: int) -> Input:
    return Input(shape, 0.3, 0.9)


def ties(*shape: int) -> Input:
    return Input(shape, -2, 3, whole=True)


def ints(*shape: int, low: int = -4, high: int = 5, dtype: Any = np.int32) -> Input:
    return Input(shape, low, high, dtype)


def bools(*shape: int) -> Input:
    return Input(shape, dtype=np.bool_)


def f32(*shape: int, low: float = -2.0, high: float = 2.0) -> Input:
    return Input(shape, low, high, np.float32)


def case(label: str, *given: Given, tolerance: float = 1e-10, differentiable: bool = True, **attrs: Any) -> Case:
    """A case named ``Type`` or ``Type/what is special``."""
    return Case(label, label.split("/")[0], given, attrs, tolerance, differentiable)


@dataclass(frozen=True, slots=True)
class SpecialValues(Input):
    """Numbers with infinities and NaN among them."""

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        return rng.choice([1.5, -2.0, np.inf, -np.inf, np.nan], self.shape)
