"""Build plain Keras optimizers for a trainer's models, and match their variables with those on the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras

from ..lowering.variables import StateEntry
from ..optimizers.copies import Slots, build_variables, fresh_copy, inner_of
from ..optimizers.keras_optimizer import KerasOptimizer
from .capture.programs import inner
from .trainer_ranks import TrainerRanks
from .variables.live import own_values


def plain_optimizers(
    optimizers: Mapping[str, keras.optimizers.Optimizer],
    variables_of: Callable[[str], Sequence[keras.Variable]],
    key_of: Callable[[Any], str | None],
    ranks: TrainerRanks,
    is_empty: bool = False,
) -> tuple[dict[str, keras.optimizers.Optimizer], list[tuple[keras.Variable, StateEntry]]]:
    """Return copies of the optimizers, by the same names, and pairs of their variables and the ranks' entries.

    Args:
        optimizers: the user's optimizers, by the name of the training step that applies each first.
        variables_of: returns the variables that the optimizer of such a step may update.
        key_of: returns the key of one of the user's variables in the ranks' state.
        is_empty: see :func:`plain_optimizer`.
    """
    copies: dict[str, keras.optimizers.Optimizer] = {}
    pairs: list[tuple[keras.Variable, StateEntry]] = []
    for step, optimizer in optimizers.items():
        variables = variables_of(step)
        with own_values():
            copies[step], slots = plain_optimizer(optimizer, variables, is_empty)
        keys = [key_of(inner(variable)) for variable in variables]
        pairs += counterparts(slots, keys, ranks.optimizers[step].state())
    return copies, pairs


def updated_by(step: str, ranks: TrainerRanks, variables: Iterable[keras.Variable]) -> list[Any]:
    """Return what a training step updates: of these variables, and TensorFlow's own where it is none of these."""
    by_id = {id(inner(variable)): variable for variable in variables}
    captured = ranks.runs.planned.captured
    step_variables = (captured.capture.variables[name] for name in captured.graph.train_steps[step].variables)
    return [by_id.get(id(variable), variable) for variable in step_variables]


def plain_optimizer(
    optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable], is_empty: bool = False
) -> tuple[keras.optimizers.Optimizer, Slots]:
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
    return copy, build_variables(copy, variables, KerasOptimizer.of(optimizer, variables).parameters)


def _empty_slot(optimizer: keras.optimizers.Optimizer) -> Callable[..., keras.Variable]:
    def add(reference_variable: Any, name: str | None = None, initializer: Any = "zeros") -> keras.Variable:
        return optimizer.add_variable((0,) * len(reference_variable.shape), "zeros", reference_variable.dtype, name=name)

    return add


def counterparts(
    slots: Iterable[tuple[keras.Variable, int | None]], keys: list[str | None], entries: Iterable[StateEntry]
) -> list[tuple[keras.Variable, StateEntry]]:
    """Return pairs of a plain optimizer's variable and the entry of the ranks' state that has its value.

    Args:
        slots: the pairs that :func:`plain_optimizer` returned.
        keys: the key in the ranks' state of each of the model's trainable variables; None for one that isn't trained there.
        entries: the optimizer's entries of the ranks' state, in the optimizer's order.
    """
    queues: dict[str | None, list[StateEntry]] = {}
    for entry in entries:
        queues.setdefault(entry.parameter, []).append(entry)
    pairs = []
    for variable, index in slots:
        key = None if index is None else keys[index]
        if index is None or (key is not None and queues.get(key)):  # else the training step doesn't update it
            pairs.append((variable, queues[key].pop(0)))
    return pairs
