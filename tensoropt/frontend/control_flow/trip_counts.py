"""Find how often a loop runs, and the values of its counters in each trip.

Loop variables that follow from constants alone (counters, limits) are found first: those that start from constants, and
whose next value depends on such variables alone. From them the condition and the counters are computed trip by trip, and
nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from ...common.errors import InputError
from ..attributes import reads_known_shapes, shape_values
from ..tracing.loops import is_passed_on

_MOST_TRIPS = 1_000_000
_NOT_STATIC = ("Placeholder", "PlaceholderWithDefault", "VarHandleOp", "ReadVariableOp", "EmptyTensorList")


@dataclass(frozen=True)
class Counters:
    """The variables of a loop that follow from constants alone.

    Attributes:
        cond, body: the loop's functions.
        starts: the first value of each loop variable that starts from constants, by the variable's index.
    """

    cond: Any
    body: Any
    starts: Mapping[int, np.ndarray]

    @cached_property
    def values(self) -> dict[int, np.ndarray]:
        """The first value of each loop variable that follows from constants, by the variable's index."""
        values = dict(self.starts)
        while True:
            static = follows_from(self.body, {self.body.inputs[k].name for k in values})
            dynamic = [k for k in values if self.body.outputs[k].name not in static]
            if not dynamic:
                return values
            for k in dynamic:
                del values[k]

    @cached_property
    def changing(self) -> tuple[int, ...]:
        """The indices of those variables that aren't the same in each trip."""
        return tuple(k for k in self.values if not is_passed_on(self.body, k))

    @cached_property
    def static(self) -> frozenset[str]:
        """The names of the tensors of the body that follow from constants and counters."""
        return follows_from(self.body, {self.body.inputs[k].name for k in self.values})

    @cached_property
    def counted(self) -> frozenset[str]:
        """The names of the tensors in :attr:`static` that depend on a counter, and so may change from trip to trip."""
        names = {self.body.inputs[k].name for k in self.changing}
        for op in self.body.get_operations():
            if any(tensor.name in names for tensor in op.inputs):
                names.update(tensor.name for tensor in op.outputs if tensor.name in self.static)
        return frozenset(names)

    def run(self, tensors: Sequence[tf.Tensor], where: str) -> Trips:
        """Run the counters until the loop ends.

        Args:
            tensors: those of the body to compute, which are in :attr:`static`.
            where: the text that names the loop in errors.

        Raises:
            InputError: the number of trips depends on what the loop computes, or is too large.
        """
        feeds = {self.cond.inputs[k].name for k in self.values}
        if self.cond.outputs[0].name not in follows_from(self.cond, feeds):
            raise InputError(
                f"{where} runs as often as a computed value says, so that devices could run it differently often, "
                "which can't be captured; loop over a fixed number of steps (with a mask where sequences are shorter), or "
                "unroll it"
            )
        nexts = [self.body.outputs[k] for k in self.changing]
        current = dict(self.values)
        rows: list[list[np.ndarray]] = []
        with tf.compat.v1.Session(graph=self.cond) as condition, tf.compat.v1.Session(graph=self.body) as step:
            while condition.run(self.cond.outputs[0], _feeds(self.cond, current)):
                if len(rows) == _MOST_TRIPS:
                    raise InputError(f"{where} runs more than {_MOST_TRIPS} times; let it end, or make several loops of it")
                row, after = step.run([list(tensors), nexts], _feeds(self.body, current))
                rows.append(row)
                current.update(zip(self.changing, after, strict=True))
        values = {tensor.name: np.stack([row[i] for row in rows]) for i, tensor in enumerate(tensors)} if rows else {}
        return Trips(len(rows), values, current)


@dataclass(frozen=True)
class Trips:
    """The trips of a loop.

    Attributes:
        count: how often the body runs.
        values: by name of a tensor of the body, its values in all trips, stacked.
        finals: by index of a loop variable that follows from constants, its value after the last trip.
    """

    count: int
    values: Mapping[str, np.ndarray]
    finals: Mapping[int, np.ndarray]


def follows_from(graph: Any, sources: set[str]) -> frozenset[str]:
    """Return the names of the tensors of a graph that follow from ``sources``, constants and shapes alone."""
    names = set(sources)
    for op in graph.get_operations():
        if op.type in _NOT_STATIC or op.op_def.is_stateful or any(t.dtype == tf.variant for t in (*op.inputs, *op.outputs)):
            continue
        if reads_known_shapes(op) or all(tensor.name in names for tensor in op.inputs):
            names.update(tensor.name for tensor in op.outputs)
    return frozenset(names)


def _feeds(graph: Any, values: Mapping[int, np.ndarray]) -> dict[str, np.ndarray]:
    return {graph.inputs[k].name: value for k, value in values.items()} | shape_values(graph.get_operations())
