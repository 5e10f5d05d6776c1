"""Build plain Keras optimizers for a trainer's models, and match their variables with those on the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras

from ..lowering.variables import StateEntry
from ..optimizers.copies import build_variables, fresh_copy, inner_of
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
    """Return copies of the optimizers, built as Keras builds them, and pairs of their variables and the ranks' entries.

    Args:
        optimizers: the user's optimizers, by the name of the training step that applies each first; so are the copies.
        variables_of: returns the variables that the optimizer of such a step may update.
        key_of: returns the key of one of the user's variables in the ranks' state; None for one that isn't trained there.
        is_empty: whether to build slots without elements: enough to know their names and paths, without their memory.
    """
    copies: dict[str, keras.optimizers.Optimizer] = {}
    pairs: list[tuple[keras.Variable, StateEntry]] = []
    for step, optimizer in optimizers.items():
        variables = list(variables_of(step))
        with own_values():
            copy = copies[step] = fresh_copy(optimizer)
            if is_empty:
                inner_of(copy).add_variable_from_reference = _empty_slot(inner_of(copy))
            slots = build_variables(copy, variables, KerasOptimizer.of(optimizer, variables).parameters)
        queues: dict[str | None, list[StateEntry]] = {}
        for entry in ranks.optimizers[step].state():
            queues.setdefault(entry.parameter, []).append(entry)
        for variable, index in slots:
            key = None if index is None else key_of(inner(variables[index]))
            if index is None or (key is not None and queues.get(key)):  # else the training step doesn't update it
                pairs.append((variable, queues[key].pop(0)))
    return copies, pairs


def _empty_slot(optimizer: keras.optimizers.Optimizer) -> Callable[..., keras.Variable]:
    def add(reference_variable: Any, name: str | None = None, initializer: Any = "zeros") -> keras.Variable:
        return optimizer.add_variable((0,) * len(reference_variable.shape), "zeros", reference_variable.dtype, name=name)

    return add


def updated_by(step: str, ranks: TrainerRanks, variables: Iterable[keras.Variable]) -> list[Any]:
    """Return what a training step updates: of these variables, and TensorFlow's own where it is none of these."""
    by_id = {id(inner(variable)): variable for variable in variables}
    captured = ranks.runs.planned.captured
    step_variables = (captured.capture.variables[name] for name in captured.graph.train_steps[step].variables)
    return [by_id.get(id(variable), variable) for variable in step_variables]
