"""Run programs on this process's ranks: the planned training step, and other programs beside it.

An evaluation, a prediction, a smaller last batch, and a batch with sample weights each have a graph of their own. These
graphs use the same variables, and inherit from the plan wherever their operators are the same.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any

import numpy as np
import tensorflow as tf

from ..common.errors import InputError, cut
from ..common.memory_units import memory_text, parse_memory
from ..common.source_lines import running_line
from ..frontend.tracing.capture import VariableNames
from ..ir.graph import Tensor
from ..lowering.gradient_analysis import analyse
from ..program.fetch import Fetch
from ..reschedule.layout import block_bounds
from ..runtime.context import Context
from ..runtime.execution import Execution
from ..runtime.failures.step_errors import RefusedValues
from ..runtime.other_programs import execute_beside, peak_beside
from ..runtime.step.functions import Feed
from ..search.request import limit_of
from ..sharding.model import Model
from .batch import Batch
from .capture.programs import TRAIN, Captured
from .capture.signature import Signature

logger = logging.getLogger("tensoropt")
MOST_SHAPES = 8
"""The most shapes for which a trainer makes programs of a kind, the planned one among them."""
MOST_DIVIDED = 4
"""A batch is taken in at most this many times the micro-batches that it would be if it were cut like planned ones."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The memory limit per device that was asked for, and the context that has the hardware, if that is measured."""

    memory: int | str | None
    context: Context

    def __post_init__(self) -> None:
        if self.memory is not None:
            parse_memory(self.memory)

    @property
    def n_bytes(self) -> int:
        """The limit in bytes: what was asked for, or the hardware's."""
        return limit_of(self.memory, self.context.hardware)


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
        engine, plan, preprocessing = self.execution.engine, self.execution.plan, self.captured.program.preprocessing
        if preprocessing is not None and plan.parallelism * plan.micro_batches == 1:  # so that no feed is cut
            feeds = dict.fromkeys(Feed(tensor, is_share) for tensor in self.captured.inputs)
            fetched = engine.run(self._fetch, feeds, preprocessing.emit, self._given(leaves, is_share))
        else:
            fetched = engine.run(self._fetch, self._feeds(leaves, is_share))
        values, n_results = [ranks[0] for ranks in fetched], len(self.captured.results)
        self.captured.act(values[n_results:], self.execution.processes.rank)
        return tf.nest.pack_sequence_as(self.captured.program.results, values[:n_results])

    @cached_property
    def updated(self) -> frozenset[str]:
        """The names of the variables that the program assigns to."""
        return frozenset(op.updates for op in self.captured.graph.operators.values() if op.updates is not None)

    @cached_property
    def _fetch(self) -> Fetch:
        steps = tuple(self.captured.graph.train_steps)
        results = tuple((tensor, False) for tensor in (*self.captured.results, *self.captured.needed))
        return Fetch(results, steps, () if steps else self.captured.writes)

    def _feeds(self, leaves: Sequence[Any], is_share: bool) -> dict[Feed, Any]:
        if self.captured.program.preprocessing is not None:
            with RefusedValues(self.captured.graph):
                leaves = self.captured.program.preprocessing(self._given(leaves, is_share))
        pairs = zip(self.captured.inputs, leaves, strict=True)
        return {Feed(tensor, is_share): conformed(tensor, value, self._shape(tensor, is_share)) for tensor, value in pairs}

    def _given(self, leaves: Sequence[Any], is_share: bool) -> list[tf.Tensor]:
        pairs = zip(self.captured.given, leaves, strict=True)
        return [tf.convert_to_tensor(conformed(tensor, value, self._shape(tensor, is_share))) for tensor, value in pairs]

    def _shape(self, tensor: Tensor, is_share: bool) -> tuple[int, ...]:
        if not is_share:
            return tensor.shape
        start, end = block_bounds(tensor.shape[0], self.execution.processes.size, self.execution.processes.rank)
        return end - start, *tensor.shape[1:]


def conformed(tensor: Tensor, value: Any, shape: tuple[int, ...]) -> Any:
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
    array = np.asarray(value)
    dtype = tf.as_dtype(tensor.dtype).as_numpy_dtype
    check_fits(tensor.name.partition(":")[0], array.shape, array.dtype.name, shape, tensor.dtype)
    return array.astype(dtype, copy=False).reshape(shape)


def check_fits(
    name: str, shape: Sequence[int | None], dtype: str, expected: Sequence[int | None], expected_dtype: str
) -> None:
    """Check a batch's shape and type against the expected ones. An unknown extent (None) fits any.

    Raises:
        InputError: they differ by more than a conversion of numbers and trailing dimensions of extent 1.
    """
    pairs = zip_longest(shape, expected, fillvalue=1)
    if any(a != b for a, b in pairs if a is not None and b is not None):
        raise InputError(
            f"a batch has shape {_text(shape)} for '{name}', expected {_text(expected)}, for which the plan was made; give "
            "batches of this shape, or parallelize the model for yours"
        )
    if dtype != expected_dtype and not (_is_number(dtype) and _is_number(expected_dtype)):
        raise InputError(f"a batch has type {dtype} for '{name}', expected {expected_dtype}; convert it")


def _text(shape: Sequence[int | None]) -> str:
    return f"[{', '.join('?' if extent is None else str(extent) for extent in shape)}]"


def _is_number(dtype: str) -> bool:
    type_ = tf.as_dtype(dtype)
    return type_.is_floating or type_.is_integer or type_.is_bool


@dataclass
class Runs:
    """A trainer's programs: the planned training step, and those that are captured when they are first needed.

    Attributes:
        expected: the signature with None for the extents in which batches may differ; a program is made for each shape.
        limit: the memory limit per device, and the hardware that it is of, for programs that need more than the planned.
        capture: captures a program (TRAIN, EVALUATE, PREDICT) for batches of a signature.
        first_values: returns, for a captured program, a function from a variable's operator name to the variable's global
            initial value. It is used for variables that the planned step doesn't have.
        names: the names of the user's variables, the same in all programs.
    """

    planned: Run
    signature: Signature
    expected: Signature
    limit: Limit
    capture: Callable[[str, Signature], Captured]
    first_values: Callable[[Captured], Callable[[str], np.ndarray]]
    names: VariableNames
    _others: dict[tuple[Any, ...], Run] = field(default_factory=dict)
    _shapes: dict[str, set[Any]] = field(default_factory=dict)

    def of(self, kind: str, batch: Batch) -> Run:
        """Return the program of a kind for a batch. A new program is captured, on all ranks together.

        Raises:
            InputError: the batches have too many shapes, or one of this shape needs too much memory.
        """
        key = (kind, batch.n_samples, batch.extents)
        return self._others[key] if key in self._others else self.at(key, kind, self.signature_of(batch))

    def has(self, kind: str, batch: Batch) -> bool:
        return (kind, batch.n_samples, batch.extents) in self._others

    def signature_of(self, batch: Batch) -> Signature:
        signature = self.expected.of(batch.n_samples, batch.inputs, batch.labels, batch.weights)
        return signature if batch.labels else replace(signature, labels=self.signature.resized(batch.n_samples).labels)

    def at(self, key: tuple[Any, ...], kind: str, signature: Signature) -> Run:
        """Return the program of a kind for batches of a signature, which a key tells from others."""
        if key not in self._others:
            self._others[key] = self._made(kind, signature)
        return self._others[key]

    @property
    def executions(self) -> tuple[Execution, ...]:
        """The executions of all programs that there are, that of the planned step first."""
        return (self.planned.execution, *(run.execution for run in self._others.values() if run is not self.planned))

    def _made(self, kind: str, signature: Signature) -> Run:
        if kind == TRAIN and signature == self.signature:
            return self.planned
        shapes = self._shapes.setdefault(kind, {self.signature.extents})
        is_new = signature.extents not in shapes
        if is_new and len(shapes) == MOST_SHAPES:
            raise InputError(
                f"batches ({running_line()}) have more than {MOST_SHAPES} shapes, {_shapes_text(signature)} among them; a "
                "program is made for each: pad to fewer lengths, as by padded_batch(..., padded_shapes=...), or by "
                "bucket_by_sequence_length(..., pad_to_bucket_boundary=True)"
            )
        captured, model = self._captured(kind, signature)
        micro_batches = self._fitting(kind, signature, model)
        if is_new:
            if self.planned.execution.processes.rank == 0 and all(len(shapes) == 1 for shapes in self._shapes.values()):
                logger.warning(
                    "batches have %s where the plan was made for %s: a program is made for each shape, with the configs of "
                    "the plan, for at most %d shapes",
                    _shapes_text(signature),
                    _shapes_text(self.signature),
                    MOST_SHAPES,
                )
            shapes.add(signature.extents)
        execution, first_values = self.planned.execution, self.first_values(captured)
        return Run(captured, execute_beside(execution, model, first_values, micro_batches))

    def _captured(self, kind: str, signature: Signature) -> tuple[Captured, Model]:
        try:
            captured = self.capture(kind, signature)
        except (ValueError, TypeError, tf.errors.OpError) as error:
            if signature.extents == self.signature.extents:
                raise
            raise InputError(
                f"the model can't take batches ({running_line()}) of {_shapes_text(signature)}, the plan was made for "
                f"{_shapes_text(self.signature)}; give batches that it takes: {cut(error)}"
            ) from error
        return captured, Model(captured.graph, analyse(captured.graph))

    # Memory

    def _fitting(self, kind: str, signature: Signature, model: Model) -> int:
        """Return in how many micro-batches a program runs, so that it fits the memory limit."""
        is_larger = signature.extents != self.signature.extents or signature.batch_size > self.signature.batch_size
        if not is_larger and self.planned.execution.plan.micro_batches == 1:
            return 1
        micro_batches, peak_bytes = self._least_peak(kind, signature.batch_size, model)
        if peak_bytes <= self.limit.n_bytes:
            return micro_batches
        best, advice = self._largest_that_fits(kind, signature), "not even shapes near the plan's fit: give smaller batches"
        if best is not None and signature.extents != self.signature.extents:
            advice = f"the longest that fits is {_shapes_text(best)}: cut or pad to that, give smaller batches"
        elif best is not None:
            advice = f"{_shapes_text(best)} fits: give smaller batches"
        raise InputError(
            f"a batch ({running_line()}) of {_shapes_text(signature)} needs {memory_text(peak_bytes)} of a device with the "
            f"configs of the plan, more than the limit of {memory_text(self.limit.n_bytes)}; {advice}, or parallelize with "
            "data= of this shape"
        )

    def _least_peak(self, kind: str, n_samples: int, model: Model) -> tuple[int, int]:
        """Return the first number of micro-batches in which a program fits the limit, or that with the least peak; and its
        peak in bytes.
        """
        peaks: dict[int, int] = {}
        for n in self._micro_batches(kind, n_samples):
            peaks[n] = peak_beside(self.planned.execution, model, self.limit.context.hardware, n)
            if peaks[n] <= self.limit.n_bytes:
                return n, peaks[n]
        return min(peaks.items(), key=lambda item: item[1])

    def _micro_batches(self, kind: str, n_samples: int) -> list[int]:
        """Return in how many micro-batches so many samples may be taken: first in such as aren't larger than planned."""
        n_planned = self.planned.execution.plan.micro_batches
        if kind != TRAIN or n_planned == 1:
            return [1]
        n_most = self.signature.batch_size // n_planned
        counts = [n for n in range(1, MOST_DIVIDED * -(-n_samples // n_most) + 1) if n_samples % n == 0]
        return sorted(counts, key=lambda n: (n_samples // n > n_most, n if n_samples // n <= n_most else -n))

    def _largest_that_fits(self, kind: str, signature: Signature) -> Signature | None:
        """Return the signature with the largest extents between the plan's and the given ones that fits; None if none does.

        All extents that differ grow together; where none does, the number of samples grows. Complexity: O(log extents)
        captures.
        """
        steps, signature_at = self._on_the_way(signature)
        low, high, fitting = -1, steps, None
        while high - low > 1:
            middle = (low + high) // 2
            candidate = signature_at(middle)
            if self._least_peak(kind, candidate.batch_size, self._captured(kind, candidate)[1])[1] <= self.limit.n_bytes:
                low, fitting = middle, candidate
            else:
                high = middle
        return fitting

    def _on_the_way(self, signature: Signature) -> tuple[int, Callable[[int], Signature]]:
        """Return the number of steps from the plan's extents, or from one sample, to a signature, and what is at a step."""
        if signature.extents == self.signature.extents:
            return signature.batch_size - 1, lambda step: signature.resized(1 + step)
        end = replace(signature, weights=None)
        start = replace(self.signature, weights=None).resized(end.batch_size)
        pairs = zip(itertools.chain(*start.extents), itertools.chain(*end.extents), strict=True)
        steps = max(abs((new or 0) - (old or 0)) for old, new in pairs)
        return steps, lambda step: _between(start, end, step, steps)


def _flat(signature: Signature) -> tuple[list[tf.TensorSpec], list[tf.TensorSpec]]:
    inputs, labels = tf.nest.flatten(signature.inputs), tf.nest.flatten(signature.labels)
    return inputs, [leaf for leaf in labels if leaf is not None]


def _between(start: Signature, end: Signature, step: int, n_steps: int) -> Signature:
    """Return the signature whose extents are ``step`` of ``n_steps`` on the way from one signature to another."""

    def at(old: tf.TensorSpec, new: tf.TensorSpec) -> tf.TensorSpec:
        extents = [a + (b - a) * step // n_steps for a, b in zip(old.shape, new.shape, strict=True)]
        return tf.TensorSpec(extents, old.dtype)

    parts = zip(_flat(start), _flat(end), strict=True)
    inputs, labels = ([at(*specs) for specs in zip(*part, strict=True)] for part in parts)
    return end.of(end.batch_size, inputs, labels, end.weights)


def _shapes_text(signature: Signature) -> str:
    """Return the shapes of inputs and labels for messages, such as ``x [8, 7, 5]``."""
    inputs, labels = _flat(signature)
    return ", ".join(f"{spec.name} {_text(spec.shape)}" for spec in [*inputs, *labels][:4])
