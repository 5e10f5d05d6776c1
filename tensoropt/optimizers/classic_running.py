"""The optimizers of ``tf.compat.v1.train`` at work: TensorFlow's own update operators on each rank's shards.

Their arithmetic is that of ``tf.compat.v1.train``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ..common.errors import InputError
from ..ir.graph import Tensor
from ..lowering.variables import StateEntry, local_variables
from ..reschedule.layout import Layout
from .classic import SLOTS, Classic
from .running_optimizer import Emission, PendingUpdate, RunningOptimizer, Shards
from .sparse import Gradient, added_up, row_gradients, values_of

# The names of the hyperparameters whose running power an optimizer needs, by its kind.
POWERS = {"adam": ("beta1", "beta2")}


def _apply(
    kind: str, variable: tf.Variable, slots: Mapping[str, tf.Variable], gradient: Gradient, numbers: Mapping[str, tf.Tensor]
) -> None:
    """Emit the update of one shard."""
    is_rows = isinstance(gradient, tf.IndexedSlices)
    if kind == "adam":
        # Dense also for rows: in rows that weren't looked up the averages decay and the values change, too.
        handles = {slot: slot_variable.handle for slot, slot_variable in slots.items()}
        arguments = {("lr" if key == "learning_rate" else key): value for key, value in numbers.items()}
        tf.raw_ops.ResourceApplyAdam(var=variable.handle, grad=tf.convert_to_tensor(gradient), **handles, **arguments)
        return
    rate = numbers["learning_rate"]
    if is_rows:
        # Sum rows that occur more than once first: TensorFlow's threads would add them in any order, and replicas would
        # drift apart.
        gradient = added_up(gradient)
    if kind != "sgd":
        apply = tf.raw_ops.ResourceSparseApplyMomentum if is_rows else tf.raw_ops.ResourceApplyMomentum
        rows = {"indices": gradient.indices} if is_rows else {}
        apply(
            var=variable.handle, accum=slots["momentum"].handle, lr=rate, grad=values_of(gradient), **rows,
            momentum=numbers["momentum"], use_nesterov=kind == "nesterov",
        )  # fmt: skip
    elif is_rows:
        step = rate * gradient.values
        tf.raw_ops.ResourceScatterSub(resource=variable.handle, indices=gradient.indices, updates=step)
    else:
        tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)


class RunningClassic(RunningOptimizer):
    """An optimizer of ``tf.compat.v1.train`` on the ranks of this process."""

    def __init__(self, optimizer: Classic, shards: Shards) -> None:
        self._kind, self._hyperparameters, self._shards = optimizer.kind, dict(optimizer.hyperparameters), shards
        self._slots = {
            (name, slot): local_variables(_zeros(tensor), tensor, layout, shards.ranks, f"{name}/{slot}")
            for name, tensor, layout in zip(shards.names, shards.tensors, shards.layouts, strict=True)
            for slot in SLOTS[optimizer.kind]
        }
        self._powers = {
            # In float32 whatever the model's type, as in TensorFlow: a power of 0.999 is 1 in 16 bits.
            key: [
                tf.Variable(self._hyperparameters[key], dtype=tf.float32, trainable=False, name=f"{shards.step}/{key}_power")
                for _ in shards.ranks
            ]
            for key in POWERS.get(optimizer.kind, ())
        }

    @property
    def learning_rate(self) -> Any:
        """Return the learning rate; it can't be set, since it is part of the graph."""
        return self._hyperparameters["learning_rate"]

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        raise InputError(
            f"the learning rate of training step '{self._shards.step}' is part of its graph and can't be set; give the "
            "optimizer a recorded scalar, such as a placeholder or a variable, and feed or assign that"
        )

    @property
    def iterations(self) -> int:
        """Raise InputError: these optimizers don't count their updates."""
        raise InputError(
            f"training step '{self._shards.step}' doesn't count its updates; give minimize a global_step variable"
        )

    def state(self) -> tuple[StateEntry, ...]:
        """Return the slots and running powers, in a fixed order."""
        shards, step = self._shards, self._shards.step
        entries = []
        for name, tensor, layout in zip(shards.names, shards.tensors, shards.layouts, strict=True):
            for slot in SLOTS[self._kind]:
                per_rank = tuple(self._slots[name, slot])
                key = f"{step}/{name}/{slot}"
                entries.append(StateEntry(key, tensor.shape, tensor.dtype, layout, per_rank, shards.ranks, name, step))
        for power, variables in self._powers.items():
            replicated = Layout.replicated(shards.mesh, 0)
            key, per_rank = f"{step}/{power}_power", tuple(variables)
            entries.append(StateEntry(key, (), "float32", replicated, per_rank, shards.ranks, None, step))
        return tuple(entries)

    def reset(self) -> None:
        """Give the slots and running powers their first values again."""
        for variables in self._slots.values():
            for variable in variables:
                variable.assign(tf.zeros_like(variable))
        for power, variables in self._powers.items():
            for variable in variables:
                variable.assign(self._hyperparameters[power])

    def train(self, emission: Emission) -> PendingUpdate:
        """Return the update of the parameters by their gradients, and of the running powers."""
        numbers = self._numbers(emission)
        return PendingUpdate(None, lambda sums: self._apply(numbers, emission))

    def _apply(self, numbers: Mapping[str, list[Any]], emission: Emission) -> None:
        for n, (name, variables) in enumerate(zip(self._shards.names, self._shards.variables, strict=True)):
            gradients: Sequence[Gradient] | None = emission.gradients[n][0]
            if emission.indices[n]:
                gradients = row_gradients(emission, self._shards, n)
            if gradients is None:
                continue
            for i, (variable, gradient) in enumerate(zip(variables, gradients, strict=True)):
                slots = {slot: self._slots[name, slot][i] for slot in SLOTS[self._kind]}
                cast = {key: tf.cast(values[i], variable.dtype) for key, values in numbers.items()}
                _apply(self._kind, variable, slots, gradient, cast)
        for power, powers in self._powers.items():
            for variable, value in zip(powers, numbers[power], strict=True):
                variable.assign(variable * tf.cast(value, variable.dtype))

    def _numbers(self, emission: Emission) -> dict[str, list[Any]]:
        """Return the hyperparameters and running powers by name; for each a list with one value per rank."""
        numbers: dict[str, list[Any]] = {}
        for key, value in self._hyperparameters.items():
            is_recorded = isinstance(value, Tensor)
            numbers[key] = emission.replicated(value) if is_recorded else [value] * len(self._shards.ranks)
        for power, variables in self._powers.items():
            numbers[f"{power}_power"] = [variable.read_value() for variable in variables]
        return numbers


def _zeros(tensor: Tensor) -> np.ndarray:
    """Return zeros of a tensor's shape that take no memory.

    Shards are made from them one by one: an array of the global shape need not fit in memory.
    """
    return np.broadcast_to(np.zeros((), tf.as_dtype(tensor.dtype).as_numpy_dtype), tensor.shape)
