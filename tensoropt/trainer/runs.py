"""Run programs on this process's ranks: the planned training step, and other programs beside it.

An evaluation, a prediction, a smaller last batch, and a batch with sample weights each have a graph of their own. These
graphs use the same variables, and inherit configs from the plan wherever their operators are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from ..common.errors import InputError
from ..ir.graph import Tensor
from ..lowering.gradient_analysis import analyse
from ..reschedule.layout import block_bounds
from ..runtime.execute import Execution, execute_beside
from ..runtime.functions import Feed, Fetch
from ..runtime.step_errors import refused_values
from ..sharding.model import Model
from .batch import Batch
from .programs import TRAIN, Captured
from .signature import Signature
from .watched import own_values


@dataclass(frozen=True)
class Run:
    """A captured program with the execution that runs it."""

    captured: Captured
    execution: Execution

    def __call__(self, leaves: Sequence[Any], is_share: bool) -> Any:
        """Run the program once; a training program takes one step.

        Args:
            leaves: the tensors of the program's arguments: global ones, or this rank's share of each.
            is_share: whether the tensors are this rank's share.

        Returns:
            The program's global results on every rank, in the program's structure.
        """
        values = self.execution.engine.run(self._fetch, self._feeds(leaves, is_share))
        return tf.nest.pack_sequence_as(self.captured.program.results, [ranks[0] for ranks in values])

    @cached_property
    def _fetch(self) -> Fetch:
        steps = tuple(self.captured.graph.train_steps)
        results = tuple((tensor, False) for tensor in self.captured.results)
        return Fetch(results, steps, () if steps else self.captured.writes)

    def _feeds(self, leaves: Sequence[Any], is_share: bool) -> dict[Feed, Any]:
        processes, captured = self.execution.processes, self.captured

        def shape(tensor: Tensor) -> tuple[int, ...]:
            if not is_share:
                return tensor.shape
            start, end = block_bounds(tensor.shape[0], processes.size, processes.rank)
            return end - start, *tensor.shape[1:]

        if captured.program.preprocessing is not None:
            pairs = zip(captured.given, leaves, strict=True)
            given = [tf.convert_to_tensor(fitted(tensor, value, shape(tensor))) for tensor, value in pairs]
            with refused_values(captured.graph):
                leaves = captured.program.preprocessing(given)
        pairs = zip(captured.inputs, leaves, strict=True)
        return {Feed(tensor, is_share): fitted(tensor, value, shape(tensor)) for tensor, value in pairs}


def fitted(tensor: Tensor, value: Any, shape: tuple[int, ...]) -> Any:
    """Return a tensor of a batch in the type and shape that a program takes.

    Numbers are converted. Trailing dimensions of extent 1 are added or dropped.

    Raises:
        InputError: the shape or the type doesn't fit the program.
    """
    if isinstance(value, tf.Tensor) and value.dtype.name == tensor.dtype and tuple(value.shape) == shape:
        return value
    if tensor.dtype == "string" and not isinstance(value, tf.Tensor):
        value = tf.convert_to_tensor(value)
    if isinstance(value, tf.Tensor) and value.dtype == tf.string:
        check_fits(tensor.name.partition(":")[0], value.shape.as_list(), "string", shape, tensor.dtype)
        return tf.reshape(value, shape)
    given = np.asarray(value)
    dtype = tf.as_dtype(tensor.dtype).as_numpy_dtype
    check_fits(tensor.name.partition(":")[0], given.shape, given.dtype.name, shape, tensor.dtype)
    return given.astype(dtype, copy=False).reshape(shape)


def check_fits(
    name: str, got: Sequence[int | None], got_dtype: str, expected: Sequence[int | None], expected_dtype: str
) -> None:
    """Check a batch's shape and type against the expected ones. An unknown extent (None) fits any.

    Raises:
        InputError: they differ by more than a conversion of numbers and trailing dimensions of extent 1.
    """
    short, long = _without_ones(got), _without_ones(expected)
    pairs = zip(short, long, strict=False)
    if len(short) != len(long) or any(a != b for a, b in pairs if a is not None and b is not None):
        raise InputError(
            f"a batch has shape {_text(got)} for '{name}', expected {_text(expected)}, for which the plan was made; give "
            "batches of this shape, or parallelize the model for yours"
        )
    if got_dtype != expected_dtype and not (_is_number(got_dtype) and _is_number(expected_dtype)):
        raise InputError(f"a batch has type {got_dtype} for '{name}', expected {expected_dtype}; convert it")


def _without_ones(shape: Sequence[int | None]) -> tuple[int | None, ...]:
    shape = tuple(shape)
    while len(shape) > 1 and shape[-1] == 1:
        shape = shape[:-1]
    return shape


def _text(shape: Sequence[int | None]) -> str:
    return f"[{', '.join('?' if extent is None else str(extent) for extent in shape)}]"


def _is_number(dtype: str) -> bool:
    found = tf.as_dtype(dtype)
    return found.is_floating or found.is_integer or found.is_bool


@dataclass
class Runs:
    """A trainer's programs: the planned training step, and those that are captured when they are first needed.

    Attributes:
        planned: the planned training step.
        signature: the signature of its batches.
        capture: captures a program (TRAIN, EVALUATE, PREDICT) for batches of a signature.
        first_values: returns, for a captured program, a function from a variable's operator name to the variable's global
            initial value. It is used for variables that the planned step doesn't have.
    """

    planned: Run
    signature: Signature
    capture: Callable[[str, Signature], Captured]
    first_values: Callable[[Captured], Callable[[str], np.ndarray]]
    _others: dict[tuple[Any, ...], Run] = field(default_factory=dict)

    def of(self, kind: str, batch: Batch) -> Run:
        """Return the program of a kind for a batch. A new program is captured, on all ranks together."""
        key = (kind, batch.n_samples, batch.weights_key)
        if key not in self._others:
            signature = self.signature.of(batch.n_samples, batch.weights)
            self._others[key] = self._made(kind, signature)
        return self._others[key]

    def _made(self, kind: str, signature: Signature) -> Run:
        if kind == TRAIN and signature == self.signature:
            return self.planned
        with own_values():
            captured = self.capture(kind, signature)
            model = Model(captured.graph, analyse(captured.graph))
            return Run(captured, execute_beside(self.planned.execution, model, self.first_values(captured)))
