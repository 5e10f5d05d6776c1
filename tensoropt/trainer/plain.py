"""The plain Keras optimizer of a trainer, and which variable on the ranks each of its variables stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import keras

from ..lowering.variables import StateEntry
from ..optimizers.copies import build, fresh_copy, inner_of
from ..optimizers.keras_optimizer import KerasOptimizer


def plain_optimizer(
    optimizer: keras.optimizers.Optimizer, model: keras.Model, is_empty: bool = False
) -> tuple[keras.optimizers.Optimizer, list[tuple[keras.Variable, int | None]]]:
    """A copy of the user's optimizer, built for a model as Keras builds it.

    Args:
        is_empty: whether its slots have no elements: enough to know their names and paths, and nothing to hold.

    Returns:
        The copy, and each of its variables with the place of the trainable variable that it was made for.
    """
    copy = fresh_copy(optimizer)
    variables = list(model.trainable_variables)
    if is_empty:
        inner_of(copy).add_variable_from_reference = _empty_slot(inner_of(copy))
    made = build(copy, variables, KerasOptimizer.of(optimizer, variables).parameters)
    return copy, [(each.variable, each.parameter) for each in made]


def _empty_slot(optimizer: keras.optimizers.Optimizer) -> Callable[..., keras.Variable]:
    def add(reference_variable: Any, name: str | None = None, initializer: Any = "zeros") -> keras.Variable:
        return optimizer.add_variable((0,) * len(reference_variable.shape), "zeros", reference_variable.dtype, name=name)

    return add


def counterparts(
    made: Iterable[tuple[keras.Variable, int | None]], keys: list[str | None], entries: Iterable[StateEntry]
) -> list[tuple[keras.Variable, StateEntry]]:
    """Pairs of a plain optimizer's variable and the entry of the ranks' state that has its value.

    Args:
        made: what :func:`plain_optimizer` gave.
        keys: of the model's trainable variables in the ranks' state; None for one that isn't trained there.
        entries: of the optimizer, in its order.
    """
    waiting: dict[str | None, list[StateEntry]] = {}
    for entry in entries:
        waiting.setdefault(entry.parameter, []).append(entry)
    pairs = []
    for variable, place in made:
        key = None if place is None else keys[place]
        if place is None or key is not None:
            pairs.append((variable, waiting[key].pop(0)))
    return pairs


