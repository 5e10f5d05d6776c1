"""Programs on this process's ranks: one set for the batches that were planned, and one for each other kind that turns up.

A last batch that is smaller, an evaluation on batches of another size, or samples that come with weights, have operators of
other shapes and hence a graph of their own. It works on the same variables, by the same configs wherever they can be had.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from ..backward import analyse
from ..engine import Feed, Fetch
from ..errors import InputError
from ..execution import Execution, execute_resized
from ..frontier import Model
from ..ir import Tensor
from ..reschedule.layout import block_bounds
from .batch import Batch
from .programs import EVALUATE, PREDICT, TRAIN, Programs
from .signature import Signature


@dataclass(frozen=True)
class Run:
    """Programs that run."""

    programs: Programs
    execution: Execution

    def train(self, batch: Batch) -> Any:
        """One training step; what the program returns, in its structure."""
        return self._run(TRAIN, batch.leaves, batch.is_share, (TRAIN,))

    def evaluate(self, batch: Batch) -> Any:
        """Update the metrics by a batch; what the program returns."""
        return self._run(EVALUATE, batch.leaves, batch.is_share)

    def predict(self, batch: Batch) -> Any:
        """The model's results for a batch, whole on every rank, in the model's structure."""
        return self._run(PREDICT, batch.inputs, batch.is_share)

    def _run(self, program: str, leaves: Sequence[Any], is_share: bool, steps: tuple[str, ...] = ()) -> Any:
        results = tuple((tensor, False) for tensor in self.programs.results(program))
        writes = () if steps else self.programs.writes(program)
        feeds = self._feeds(program, leaves, is_share)
        values = self.execution.engine.run(Fetch(results, steps, writes), feeds)
        structure = self.programs.captured[program].results
        return tf.nest.pack_sequence_as(structure, [ranks[0] for ranks in values])

    def _feeds(self, program: str, leaves: Sequence[Any], is_share: bool) -> dict[Feed, Any]:
        processes = self.execution.processes
        feeds: dict[Feed, Any] = {}
        for tensor, value in zip(self.programs.inputs(program), leaves, strict=True):
            start, end = block_bounds(tensor.shape[0], processes.size, processes.rank) if is_share else (0, tensor.shape[:1])
            shape = (end - start, *tensor.shape[1:]) if is_share else tensor.shape
            feeds[Feed(tensor, is_share)] = fitted(tensor, value, shape)
        return feeds


def fitted(tensor: Tensor, value: Any, shape: tuple[int, ...]) -> Any:
    """A batch as a program takes it: numbers are converted, and dimensions of 1 at the end come and go.

    Raises:
        InputError: its shape or type isn't that of the program.
    """
    if isinstance(value, tf.Tensor) and value.dtype.name == tensor.dtype and tuple(value.shape) == shape:
        return value
    given = np.asarray(value)
    dtype = tf.as_dtype(tensor.dtype).as_numpy_dtype
    check_fits(tensor.name.partition(":")[0], given.shape, given.dtype.name, shape, tensor.dtype)
    return given.astype(dtype, copy=False).reshape(shape)


def check_fits(
    name: str, got: Sequence[int | None], got_dtype: str, expected: Sequence[int | None], expected_dtype: str
) -> None:
    """Hold a batch's shape and type against what is expected of it; an extent that isn't known fits.

    Raises:
        InputError: they differ by more than a conversion of numbers and dimensions of 1 at the end.
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
    """Attributes:
    planned: for the batches of the plan.
    signature: what these look like.
    captured: captures the programs for others.
    """

    planned: Run
    signature: Signature
    captured: Callable[[Signature], Programs]
    _others: dict[str, Run] = field(default_factory=dict)

    def of(self, batch: Batch) -> Run:
        """The programs for such a batch."""
        wanted = self.signature.of(batch.n_samples, batch.weights)
        if wanted == self.signature:
            return self.planned
        key = repr(wanted)
        if key not in self._others:
            programs = self.captured(wanted)
            model = Model(programs.graph, analyse(programs.graph))
            self._others[key] = Run(programs, execute_resized(self.planned.execution, model))
        return self._others[key]
