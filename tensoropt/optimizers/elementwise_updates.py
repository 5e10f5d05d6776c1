"""Find out whether an optimizer may update a parameter in shards: from what is known of Keras's own, else by an experiment.

The experiment updates random parameters of one to four dimensions over several steps, once undivided and once in two parts,
cut along each dimension in turn. The parts' values and slots must equal those of the undivided parameters to the bit. Sizes
are such that no element is handled in the remainder of a vectorised loop, where the last bit may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import keras
import numpy as np
import tensorflow as tf
from keras.src.optimizers.base_optimizer import BaseOptimizer

from ..common.errors import InputError
from .copies import KerasBase, Parameter, ShardVariable, build_variables, fresh_copy

_ELEMENTWISE = frozenset(
    getattr(keras.optimizers, name) for name in "SGD RMSprop Adam AdamW Adagrad Adadelta Adamax Nadam Ftrl Lion".split()
)
# Older versions of Keras have none.
MULTI_OPTIMIZERS = (keras.optimizers.MultiOptimizer,) if hasattr(keras.optimizers, "MultiOptimizer") else ()
_SHAPES = ((32,), (8, 16), (4, 4, 8), (4, 2, 4, 4))
# The magnitudes of the gradients: from far below to far above any threshold that an update may have.
_MAGNITUDES = (1e-3, 1.0, 1e3, 1e6)
# Methods in which Keras mixes elements or parameters. Where they are Keras's own, this package computes what they would.
_TAKEN_OVER = ("apply", "_clip_gradients", "_backend_apply_gradients")
_found: dict[tuple[object, ...], str] = {}
"""The results of experiments, by the experiment, the optimizer's class and its configuration."""


def is_taken_over(optimizer: KerasBase) -> bool:
    """Return whether clipping and accumulation are Keras's own, so that sums over all shards can replace the norms."""
    return all(getattr(type(optimizer), name) is getattr(BaseOptimizer, name) for name in _TAKEN_OVER)


def fault_of(optimizer: KerasBase) -> str:
    """Return why an optimizer needs replicated parameters; empty if shards do.

    Raises:
        InputError: the optimizer's updates are random, so that no two ranks would agree.
    """
    return _fault_found_by(_fault_when_cut, optimizer)


def mixing_of(optimizer: KerasBase) -> str:
    """Return why an optimizer's update of a parameter depends on which others it updates; empty where it doesn't.

    A norm over all gradients that is Keras's own doesn't count, since sums replace it.
    """
    return _fault_found_by(_fault_when_parted, optimizer)


def _fault_found_by(experiment: Callable[[KerasBase], str], optimizer: KerasBase) -> str:
    """Return what an experiment finds, which is made once for each class and configuration of optimizers."""
    if type(optimizer) in _ELEMENTWISE:
        return ""
    if isinstance(optimizer, MULTI_OPTIMIZERS):
        return "it gives parameters to several optimizers"
    key = experiment, type(optimizer), str(sorted(optimizer.get_config().items(), key=str))
    if key not in _found:
        with tf.init_scope():
            _found[key] = experiment(optimizer)
    return _found[key]


def _fault_when_cut(optimizer: KerasBase) -> str:
    """Return where updates of halves differ from the undivided one; raise InputError if two undivided updates differ."""
    whole = _updated(optimizer, lambda value: value)
    name = type(optimizer).__name__
    if _differs(whole, _updated(optimizer, lambda value: value)):
        raise InputError(
            f"optimizer {name} makes another update each time from the same gradients, so that ranks would drift apart; "
            "expected an update without random numbers: add noise in the model instead"
        )
    for dim in range(len(_SHAPES[-1])):
        halves = [_updated(optimizer, partial(_half, dim=dim, half=half)) for half in (0, 1)]
        expected = [[_half(value, dim, half) if value.ndim else value for value in whole] for half in (0, 1)]
        if any(_differs(expected_half, half) for expected_half, half in zip(expected, halves, strict=True)):
            rank = "vector" if dim == 0 else "matrix"
            return f"its update of a {rank} differs from that of the halves, cut along dimension {dim}"
    return ""


def _fault_when_parted(optimizer: KerasBase) -> str:
    """Return that updates of some parameters differ from the update of all; an empty text where they don't."""
    whole, n = _updated(optimizer, lambda value: value), len(_SHAPES)
    parts = [_updated(optimizer, lambda value: value, part) for part in (slice(0, 2), slice(2, n))]
    values = [value for part, n_own in zip(parts, (2, n - 2), strict=True) for value in part[:n_own]]
    return "its update of a parameter depends on other parameters" if _differs(whole[:n], values) else ""


def starts_from_values(optimizer: KerasBase) -> bool:
    """Return whether the first values of the optimizer's variables depend on the values of the parameters."""
    with tf.init_scope():
        first = []
        for start in (1.0, 2.0):
            value = np.full((2, 2), start, np.float32)
            parameters = [Parameter("experiment/kernel", value.shape)]
            shard = ShardVariable(tf.Variable(value), value.shape, parameters[0])
            variables = build_variables(fresh_copy(optimizer), [shard], parameters)
            first.append([np.asarray(variable) for variable, _ in variables])
    return _differs(*first)


def _half(value: np.ndarray, dim: int, half: int) -> np.ndarray:
    """Return one of two halves of an array, cut along a dimension, or along the last one if there are fewer."""
    return np.array_split(value, 2, axis=min(dim, value.ndim - 1))[half]


def _differs(expected: Sequence[np.ndarray], actual: Sequence[np.ndarray]) -> bool:
    """Return whether two lists of arrays differ in shapes or bits.

    Bits are compared so that what is not a number equals itself. A variable that isn't cut along with its parameter differs
    in its shape.
    """
    return any(a.shape != b.shape or a.tobytes() != b.tobytes() for a, b in zip(expected, actual, strict=True))


def _updated(optimizer: KerasBase, cut: Callable[[np.ndarray], np.ndarray], part: slice = slice(None)) -> list[np.ndarray]:
    """Return the parameters and the optimizer's variables after several steps."""
    copy = fresh_copy(optimizer)
    if is_taken_over(optimizer):
        copy.clipnorm = copy.global_clipnorm = copy.gradient_accumulation_steps = None
    copy.loss_scale_factor = None
    rng = np.random.default_rng(1)
    values = [rng.normal(size=shape).astype(np.float32) for shape in _SHAPES][part]
    parameters = [Parameter(f"experiment/kernel_{value.ndim}", value.shape) for value in values]
    shards = [cut(value) for value in values]
    variables = [ShardVariable(tf.Variable(v), v.shape, parameter) for v, parameter in zip(shards, parameters, strict=True)]
    states = build_variables(copy, variables, parameters)
    for magnitude in _MAGNITUDES:
        gradients = [(magnitude * rng.normal(size=shape)).astype(np.float32) for shape in _SHAPES]
        copy.apply([tf.constant(cut(gradient)) for gradient in gradients[part]], variables)
    return [np.asarray(variable) for variable in (*variables, *(variable for variable, _ in states))]
