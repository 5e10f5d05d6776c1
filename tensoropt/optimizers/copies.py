"""Copies of a Keras optimizer, one per rank, and the variables that they are built on.

A copy is the user's class, made again from its config, so that Keras's own code updates the pieces. It sees each piece as a
``keras.Variable`` under the path of the user's variable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from ..common.errors import InputError
from ..reschedule.layout import Shape

KerasBase = Any  # keras.optimizers.Optimizer, which has no types
# Plain attributes that belong to an object's life and not to its configuration.
_OF_LIFE = frozenset({"built", "name"})


@dataclass(frozen=True, slots=True)
class Parameter:
    """A trained variable as Keras's logic by names sees it.

    Attributes:
        path: in the user's model, such as ``dense/kernel``.
        shape: of the whole.
        decays: whether weight decay applies to it.
        constraint: what its value is projected by after each update, or None.
    """

    path: str
    shape: Shape
    decays: bool = True
    constraint: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class OptimizerVariable:
    """A variable of an optimizer, and the place of the parameter that it was made for, if it was."""

    variable: Any
    parameter: int | None


class Piece(keras.Variable):
    """A rank's piece as a Keras variable over the engine's own; its static shape is that of the piece."""

    def __init__(self, variable: tf.Variable, shape: Shape, parameter: Parameter) -> None:
        self._local = shape
        super().__init__(variable, dtype=variable.dtype.name, trainable=True, name=parameter.path.rsplit("/", 1)[-1])
        self._path = parameter.path
        self.constraint = parameter.constraint

    def _validate_shape(self, shape: Any) -> Shape:
        # TensorFlow's static shape leaves out extents in which ranks differ.
        return self._local


def inner_of(optimizer: KerasBase) -> KerasBase:
    """The optimizer that updates: that inside of a ``LossScaleOptimizer``."""
    return optimizer.inner_optimizer if type(optimizer) is keras.optimizers.LossScaleOptimizer else optimizer


def fresh_copy(optimizer: KerasBase, kinds: dict[Any, Any] | None = None) -> KerasBase:
    """An optimizer of the same class and configuration, without variables yet.

    Args:
        kinds: classes to take in place of others.

    Raises:
        InputError: it can't be made again from its ``get_config``.
    """
    if type(optimizer) is keras.optimizers.LossScaleOptimizer:
        inner = fresh_copy(optimizer.inner_optimizer, kinds)
        return type(optimizer)(inner, optimizer.initial_scale, optimizer.dynamic_growth_steps, name=optimizer.name)
    config = optimizer.get_config()
    rate = optimizer._learning_rate
    is_number = isinstance(rate, keras.Variable)
    if not is_number:
        # A schedule has no state: the user's own serves all copies, whether Keras can serialize it or not.
        config["learning_rate"] = 0.0
    kind: Any = (kinds or {}).get(type(optimizer), type(optimizer))
    try:
        copy = kind.from_config(config)
    except Exception as error:
        raise InputError(
            f"optimizer {type(optimizer).__name__} can't be made again from its get_config(), which each rank needs "
            f"({type(error).__name__}: {error}); its get_config must return all arguments of its __init__"
        ) from error
    for key, value in vars(optimizer).items():
        # What was set after it was made, or left out of its config.
        if not key.startswith("_") and key not in _OF_LIFE and isinstance(value, (int, float, str, bool, type(None))):
            setattr(copy, key, value)
    if not is_number:
        copy.learning_rate = rate
    return copy


def build(optimizer: KerasBase, variables: Sequence[Any], parameters: Sequence[Parameter]) -> tuple[OptimizerVariable, ...]:
    """Have an optimizer make its variables, and tell for which parameter each was made."""
    places = {id(variable): place for place, variable in enumerate(variables)}
    owners: dict[int, int] = {}
    inner = inner_of(optimizer)
    add = inner.add_variable_from_reference

    def recording(reference_variable: Any, *args: Any, **kwargs: Any) -> Any:
        made = add(reference_variable, *args, **kwargs)
        owners[id(made)] = places[id(reference_variable)]
        return made

    _build_with(optimizer, variables, recording)
    inner._exclude_from_weight_decay_cache = {
        inner._var_key(variable): parameter.decays for variable, parameter in zip(variables, parameters, strict=True)
    }
    return tuple(OptimizerVariable(each, owners.get(id(each))) for each in optimizer.variables)


def slots_of(optimizer: KerasBase, parameters: Sequence[Parameter]) -> tuple[int, ...]:
    """Per parameter the variables of its shape that an optimizer keeps, found by building a copy on tiny parameters.

    Variables are slow to make: those that are alike are made once, and what is asked for counts.
    """
    copy = fresh_copy(optimizer)
    add = inner_of(copy).add_variable_from_reference
    values = {rank: tf.Variable(tf.zeros((1,) * rank)) for rank in {len(each.shape) for each in parameters}}
    tiny = [Piece(values[len(each.shape)], (1,) * len(each.shape), each) for each in parameters]
    places = {id(piece): place for place, piece in enumerate(tiny)}
    counts = [0] * len(parameters)
    made: dict[tuple[int, str], Any] = {}

    def counting(reference_variable: Any, *args: Any, **kwargs: Any) -> Any:
        counts[places[id(reference_variable)]] += 1
        kind = len(reference_variable.shape), repr((args, sorted(kwargs.items())))
        if kind not in made:
            made[kind] = add(reference_variable, *args, **kwargs)
        return made[kind]

    _build_with(copy, tiny, counting)
    return tuple(counts)


def _build_with(optimizer: KerasBase, variables: Sequence[Any], add: Callable[..., Any]) -> None:
    """Have an optimizer make its variables, with ``add`` for those that belong to a parameter."""
    inner = inner_of(optimizer)
    inner.add_variable_from_reference = add
    try:
        optimizer.build(list(variables))
    finally:
        del inner.add_variable_from_reference


@dataclass(frozen=True, slots=True, eq=False)
class OnRank:
    """The copy of one rank, what it updates, and the variables that it made."""

    copy: KerasBase
    updated: tuple[Piece, ...]
    made: tuple[OptimizerVariable, ...]

    @property
    def inner(self) -> KerasBase:
        return inner_of(self.copy)
