"""Build a plain Keras optimizer for a trainer's model, and match its variables with those on the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras

from ..lowering.variables import StateEntry
from ..optimizers.copies import build_variables, fresh_copy, inner_of
from ..optimizers.keras_optimizer import KerasOptimizer


def plain_optimizer(
    optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable], is_empty: bool = False
) -> tuple[keras.optimizers.Optimizer, list[tuple[keras.Variable, int | None]]]:
    """Return a copy of the user's optimizer, built as Keras builds it.

    Args:
        variables: the variables that it may update.
        is_empty: whether to build slots without elements: enough to know their names and paths, without their memory.

    Returns:
        The copy, and for each of its variables the index of the trainable variable that it was made for, or None.
    """
    copy = fresh_copy(optimizer)
    variables = list(variables)
    if is_empty:
        inner_of(copy).add_variable_from_reference = _empty_slot(inner_of(copy))
    made = build_variables(copy, variables, KerasOptimizer.of(optimizer, variables).parameters)
    return copy, [(each.variable, each.parameter) for each in made]


def _empty_slot(optimizer: keras.optimizers.Optimizer) -> Callable[..., keras.Variable]:
    def add(reference_variable: Any, name: str | None = None, initializer: Any = "zeros") -> keras.Variable:
        return optimizer.add_variable((0,) * len(reference_variable.shape), "zeros", reference_variable.dtype, name=name)

    return add


def counterparts(
    made: Iterable[tuple[keras.Variable, int | None]], keys: list[str | None], entries: Iterable[StateEntry]
) -> list[tuple[keras.Variable, StateEntry]]:
    """Return pairs of a plain optimizer's variable and the entry of the ranks' state that has its value.

    Args:
        made: the pairs that :func:`plain_optimizer` returned.
        keys: the key in the ranks' state of each of the model's trainable variables; None for one that isn't trained there.
        entries: the optimizer's entries of the ranks' state, in the optimizer's order.
    """
    waiting: dict[str | None, list[StateEntry]] = {}
    for entry in entries:
        waiting.setdefault(entry.parameter, []).append(entry)
    pairs = []
    for variable, index in made:
        key = None if index is None else keys[index]
        if index is None or (key is not None and waiting.get(key)):  # else the training step doesn't update it
            pairs.append((variable, waiting[key].pop(0)))
    return pairs


