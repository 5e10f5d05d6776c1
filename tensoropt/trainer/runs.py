"""Programs on this process's ranks: one set for the batch size that was planned, and one for each other that turns up.

A last batch that is smaller, or an evaluation on batches of another size, has operators of other shapes and hence a graph of
its own. It works on the same variables, by the same configs wherever they can be had for so few samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from ..backward import analyse
from ..engine import Feed, Fetch
from ..errors import InputError
from ..execution import Execution, execute_resized
from ..fetching import local_share
from ..frontier import Model
from ..ir import Operator, Tensor
from ..lowering.local import piece_of
from ..reschedule.layout import Shape
from .programs import EVALUATE, PREDICT, TRAIN, Programs

Leaves = Sequence[np.ndarray]
# Variables are brought together so many bytes at a time.
FETCHED_BYTES = 256 << 20


@dataclass(frozen=True)
class Run:
    """Programs that run."""

    programs: Programs
    execution: Execution

    def train(self, leaves: Leaves, is_share: bool) -> float:
        """One training step; the loss before it."""
        fetch = Fetch(((self.programs.results(TRAIN)[0], False),), (TRAIN,))
        ((loss, *_),) = self.execution.engine.run(fetch, self._feeds(TRAIN, leaves, is_share))
        return float(loss)

    def evaluate(self, leaves: Leaves, is_share: bool) -> None:
        """Update the metrics by a batch."""
        fetch = Fetch((), (), self.programs.writes(EVALUATE))
        self.execution.engine.run(fetch, self._feeds(EVALUATE, leaves, is_share))

    def predict(self, leaves: Leaves, is_share: bool) -> Any:
        """The model's results for a batch, whole on every rank, in the model's structure."""
        results = self.programs.results(PREDICT)
        fetch = Fetch(tuple((tensor, False) for tensor in results))
        values = self.execution.engine.run(fetch, self._feeds(PREDICT, leaves, is_share))
        structure = self.programs.captured[PREDICT].results
        return tf.nest.pack_sequence_as(structure, [ranks[0] for ranks in values])

    def _feeds(self, program: str, leaves: Leaves, is_share: bool) -> dict[Feed, np.ndarray]:
        inputs = self.programs.inputs(program)
        n_ranks = self.execution.plan.parallelism
        local = is_share and not self.execution.is_emulated and n_ranks > 1
        rank = self.execution.processes.rank
        feeds = {}
        for tensor, value in zip(inputs, leaves, strict=True):
            is_share = local and bool(tensor.shape)
            shape = local_share(tensor, rank, n_ranks) if is_share else tensor.shape
            feeds[Feed(tensor, is_share)] = fitted(tensor, value, shape)
        return feeds

    def values(self, operators: Sequence[Operator]) -> Iterator[tuple[Operator, np.ndarray]]:
        """Whole values of variables; every rank must ask for the same. Those that lie whole here need no other rank."""
        engine = self.execution.engine
        pending: list[Operator] = []
        for op in operators:
            if engine.view.layout(op.result).is_replicated:
                yield op, engine.variables[op.name][0].numpy()
            else:
                pending.append(op)
        while pending:
            group = [pending.pop()]
            while pending and sum(op.result.mem_bytes for op in group) < FETCHED_BYTES:
                group.append(pending.pop())
            found = engine.run(Fetch(tuple((op.result, False) for op in group)), {})
            yield from ((op, ranks[0]) for op, ranks in zip(group, found, strict=True))

    def assign(self, op: Operator, value: np.ndarray) -> None:
        """Give a variable a value: each rank takes its piece."""
        engine = self.execution.engine
        layout = engine.view.layout(op.result)
        for rank, variable in zip(engine.backend.ranks, engine.variables[op.name], strict=True):
            variable.assign(np.asarray(value)[piece_of(layout, op.result.shape, rank)])


def fitted(tensor: Tensor, value: Any, shape: Shape) -> np.ndarray:
    """A batch as the model takes it: numbers are converted, and dimensions of 1 at the end come and go.

    Raises:
        InputError: its shape or type isn't the planned one.
    """
    given = np.asarray(value)
    dtype = tf.as_dtype(tensor.dtype).as_numpy_dtype
    if _without_ones(given.shape) != _without_ones(shape):
        raise InputError(
            f"a batch has shape {list(given.shape)} for '{tensor.name.partition(':')[0]}', expected {list(shape)}, for "
            "which the plan was made; give batches of this shape, or parallelize the model for yours"
        )
    if given.dtype != dtype and (given.dtype.kind not in "biuf" or np.dtype(dtype).kind not in "biuf" + "V"):
        raise InputError(
            f"a batch has type {given.dtype} for '{tensor.name.partition(':')[0]}', expected {tensor.dtype}; convert it"
        )
    return given.astype(dtype, copy=False).reshape(shape)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    while len(shape) > 1 and shape[-1] == 1:
        shape = shape[:-1]
    return shape


@dataclass
class Runs:
    """Attributes:
    planned: for the batch size of the plan.
    resized: captures the programs for another batch size.
    """

    planned: Run
    batch_size: int
    resized: Callable[[int], Programs]
    _by_size: dict[int, Run] = field(default_factory=dict)

    def of(self, n_samples: int) -> Run:
        """The programs for batches of so many samples."""
        if n_samples == self.batch_size:
            return self.planned
        if n_samples not in self._by_size:
            programs = self.resized(n_samples)
            model = Model(programs.graph, analyse(programs.graph))
            self._by_size[n_samples] = Run(programs, execute_resized(self.planned.execution, model))
        return self._by_size[n_samples]
