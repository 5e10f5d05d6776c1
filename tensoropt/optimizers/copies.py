"""Copies of a Keras optimizer, one for each rank, and the variables that they are built on.

A copy has the user's class and is made from the config, so that Keras's own code updates the shards. It sees each shard as a
``keras.Variable`` with the path of the user's variable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from ..common.errors import InputError
from ..reschedule.layout import Shape

KerasBase = Any  # keras.optimizers.Optimizer, which has no type annotations
# Plain attributes that belong to an object's lifetime and not to its configuration.
_OF_LIFE = frozenset({"built", "name"})


@dataclass(frozen=True, slots=True)
class Parameter:
    """A trained variable, with what Keras's logic looks at.

    Attributes:
        path: its path in the user's model, such as ``dense/kernel``.
        shape: the global shape.
        decays: whether weight decay applies to it.
        constraint: the function that its value is projected with after each update, or None.
    """

    path: str
    shape: Shape
    decays: bool = True
    constraint: Callable[[Any], Any] | None = None


Slots = tuple[tuple[Any, int | None], ...]
"""An optimizer's variables (Keras's), each with the index of the parameter that it was made for; None if for none."""


class ShardVariable(keras.Variable):
    """A rank's shard as a Keras variable, which wraps the engine's own. Its static shape is the shard's."""

    def __init__(self, variable: tf.Variable, shape: Shape, parameter: Parameter) -> None:
        self._local = shape
        super().__init__(variable, dtype=variable.dtype.name, trainable=True, name=parameter.path.rsplit("/", 1)[-1])
        self._path = parameter.path
        self.constraint = parameter.constraint

    def _validate_shape(self, shape: Any) -> Shape:
        """Return the shard's shape, which Keras takes for the variable's."""
        # TensorFlow's static shape lacks the extents that aren't the same on all ranks.
        return self._local


def inner_of(optimizer: KerasBase) -> KerasBase:
    """Return the optimizer that updates: the inner one of a ``LossScaleOptimizer``, else the optimizer itself."""
    return optimizer.inner_optimizer if type(optimizer) is keras.optimizers.LossScaleOptimizer else optimizer


def named_variables(optimizer: KerasBase) -> dict[str, Any]:
    """Return an optimizer's variables by names that are the same for optimizers that are alike.

    They lack the optimizer's own name, and names that Keras numbers throughout a program.
    """
    inner, result = inner_of(optimizer), {}
    of_inner = {id(v) for v in inner.variables} if inner is not optimizer else set()
    attributes = {id(value): key.strip("_") for key, value in reversed(list(vars(inner).items()))}
    for k, variable in enumerate(optimizer.variables):
        name = variable.path.partition("/")[2] or attributes.get(id(variable), variable.path.strip("_"))
        name = ("inner/" if id(variable) in of_inner else "") + name
        result[f"{name}_{k}" if name in result else name] = variable
    return result


def fresh_copy(optimizer: KerasBase, kinds: dict[Any, Any] | None = None) -> KerasBase:
    """Return an optimizer of the same class and configuration, without variables yet.

    Args:
        kinds: by class, the class to make instead.

    Raises:
        InputError: the optimizer can't be made from its ``get_config``.
    """
    if type(optimizer) is keras.optimizers.LossScaleOptimizer:
        inner = fresh_copy(optimizer.inner_optimizer, kinds)
        return type(optimizer)(inner, optimizer.initial_scale, optimizer.dynamic_growth_steps, name=optimizer.name)
    config = optimizer.get_config()
    rate = optimizer._learning_rate
    is_number = isinstance(rate, keras.Variable)
    if not is_number:
        # A schedule has no state: the user's own serves all copies, whether Keras can serialize it or not. If it were set
        # later, the variable that it replaced would keep TensorFlow from saving the copy.
        config["learning_rate"] = rate
    kind: Any = (kinds or {}).get(type(optimizer), type(optimizer))
    try:
        copy = kind.from_config(config)
    except Exception as error:
        raise InputError(
            f"optimizer {type(optimizer).__name__} can't be made again from its get_config(), which each rank needs "
            f"({type(error).__name__}: {error}); its get_config must return all arguments of its __init__"
        ) from error
    # Copy what was set on the optimizer after it was made, or is missing in its config.
    for key, value in settings_of(optimizer).items():
        setattr(copy, key, value)
    return copy


def settings_of(optimizer: KerasBase) -> dict[str, Any]:
    """Return the plain attributes by which an optimizer computes, and its learning rate if that is a schedule."""
    settings = {
        key: value
        for key, value in vars(optimizer).items()
        if not key.startswith("_") and key not in _OF_LIFE and isinstance(value, (int, float, str, bool, type(None)))
    }
    rate = getattr(optimizer, "_learning_rate", None)
    return settings if rate is None or isinstance(rate, keras.Variable) else {**settings, "learning_rate": rate}


def as_text(value: Any) -> str:
    """Return what tells a value from others on all ranks: its config if it has one, and not its address in memory."""
    content = value.get_config() if hasattr(value, "get_config") and not isinstance(value, type) else value
    return re.sub(r" at 0x[0-9a-f]+", "", f"{type(value).__qualname__} {content!r}")


def build_variables(optimizer: KerasBase, variables: Sequence[Any], parameters: Sequence[Parameter]) -> Slots:
    """Have an optimizer make its variables, and return them."""
    indices = {id(variable): index for index, variable in enumerate(variables)}
    owners: dict[int, int] = {}
    inner = inner_of(optimizer)
    add = inner.add_variable_from_reference

    def recording(reference_variable: Any, *args: Any, **kwargs: Any) -> Any:
        """Make a variable, and note the parameter that it is made for."""
        new = add(reference_variable, *args, **kwargs)
        owners[id(new)] = indices[id(reference_variable)]
        return new

    _build_with(optimizer, variables, recording)
    decays = {inner._var_key(variable): parameter.decays for variable, parameter in zip(variables, parameters, strict=True)}
    inner._use_weight_decay = lambda variable: decays[inner._var_key(variable)]
    return tuple((v, owners.get(id(v))) for v in optimizer.variables)


def slots_of(optimizer: KerasBase, parameters: Sequence[Parameter]) -> tuple[int, ...]:
    """Return, for each parameter, the number of variables of its shape that an optimizer keeps.

    They are counted while a copy is built on tiny parameters. Variables are slow to make: those that are alike are made
    once, and requests for them are counted.
    """
    copy = fresh_copy(optimizer)
    add = inner_of(copy).add_variable_from_reference
    values = {rank: tf.Variable(tf.zeros((1,) * rank)) for rank in {len(parameter.shape) for parameter in parameters}}
    tiny = [ShardVariable(values[len(parameter.shape)], (1,) * len(parameter.shape), parameter) for parameter in parameters]
    indices = {id(shard): index for index, shard in enumerate(tiny)}
    counts = [0] * len(parameters)
    variable_of: dict[tuple[int, str], Any] = {}

    def counting(reference_variable: Any, *args: Any, **kwargs: Any) -> Any:
        """Count a request for a variable; make it unless one alike has been made."""
        counts[indices[id(reference_variable)]] += 1
        kind = len(reference_variable.shape), repr((args, sorted(kwargs.items())))
        if kind not in variable_of:
            variable_of[kind] = add(reference_variable, *args, **kwargs)
        return variable_of[kind]

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
    """One rank's copy of the optimizer.

    Attributes:
        shards: those that it updates.
        slots: the variables that it made.
    """

    copy: KerasBase
    shards: tuple[ShardVariable, ...]
    slots: Slots

    @property
    def inner(self) -> KerasBase:
        """Return the optimizer that updates; see :func:`inner_of`."""
        return inner_of(self.copy)
