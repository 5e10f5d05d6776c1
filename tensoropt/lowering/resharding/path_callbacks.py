"""Emit paths that communicate as callbacks into Python, one for each path.

All callbacks of a chain are chained in the order in which they were created, which is the same on every rank. The chain is
one of data: each callback takes a number from the one before it. Control dependencies wouldn't do, since TensorFlow's graph
optimizer removes them.

There is one chain, or a second one for paths that only updates wait for: their megabytes are then sent while the passes go
on, and don't delay what the passes wait for. Either way there is no deadlock, by construction. The ranks' graphs are equal,
so they form one graph in which a collective is one operator of all its members, and in which chains and data have no cycle.
Among the operators that aren't done, take one that needs none of the others. Each chain blocks one thread of TensorFlow's at
most, and there is one more thread than chains. So every rank comes to this operator, whatever the rank waits for in the
other chain, and the operator gets done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import tensorflow as tf

from ...profiling.python_calls import keep_thread_state
from ...reschedule.path import Path
from ..operators import Values
from .local_steps import shape_after

Runner = Callable[..., list[np.ndarray]]
_TURN = np.zeros((), np.int32)
NAME, OVERLAPPABLE_NAME = "collective", "overlappable_collective"
"""The names of callbacks' operators: of the main chain, and of the chain that only updates wait for."""


@dataclass(frozen=True, slots=True)
class CollectiveRequest:
    """The purpose of a path that is to be emitted.

    Attributes:
        operator: the operator that the path's collectives are for.
        what: the path's collectives, for messages.
        reduction: "sum", or "max" for a path of one all-reduce that takes maxima.
        is_overlappable: whether only updates wait for the path.
        after: values that must have been computed before the path runs.
    """

    operator: str
    what: str
    reduction: str = "sum"
    is_overlappable: bool = False
    after: tuple[tf.Tensor, ...] = ()


class PathEmitter(Protocol):
    """An emitter, into one graph, of the paths of the ranks that this process builds."""

    @property
    def joins(self) -> bool:
        """Return whether several paths can share a collective."""

    def call(self, run: Runner, operands: Sequence[tf.Tensor], dtypes: Sequence[tf.DType]) -> Values:
        """Emit a callback behind all collectives so far; return what ``run`` makes of the operands."""

    def emit(self, path: Path, values: Values, request: CollectiveRequest) -> Values:
        """Return the local values after a path with collectives."""

    def emit_together(self, paths: Sequence[Path], values: Sequence[Values], request: CollectiveRequest) -> list[Values]:
        """Return, by path, the local values after paths that are one all-reduce each, over the same axes."""


class Runners(Protocol):
    """A maker of functions that run paths on arrays."""

    def runner(self, path: Path, text: str, reduction: str = "sum") -> Runner:
        """Return a function from the ranks' shards before a path to those after it.

        Args:
            text: the path's collectives, for messages.
            reduction: "sum", or "max" for a path of one all-reduce that takes maxima.
        """

    def together(self, paths: Sequence[Path], text: str) -> Runner:
        """Return such a function for paths of one all-reduce each, over the same axes: shards and results path by path."""


@dataclass
class Callbacks:
    """An emitter that emits paths as callbacks into Python.

    Attributes:
        runners: makes the functions that the callbacks call.
        overlappable: the same for paths that only updates wait for, which get a chain of their own; None for one chain.
    """

    runners: Runners
    overlappable: Runners | None = None
    _turns: dict[bool, tf.Tensor] = field(default_factory=dict)

    @property
    def joins(self) -> bool:
        """Return True: callbacks can sum several gradients in one collective."""
        return True

    def emit(self, path: Path, values: Values, request: CollectiveRequest) -> Values:
        """Return the local values after a path."""
        runner = self._runners(request).runner(path, request.what, request.reduction)
        return self._call(runner, [path], [values], request)[0]

    def emit_together(self, paths: Sequence[Path], values: Sequence[Values], request: CollectiveRequest) -> list[Values]:
        """Return, by path, the local values after paths that share one all-reduce."""
        return self._call(self._runners(request).together(paths, request.what), paths, values, request)

    def _runners(self, request: CollectiveRequest) -> Runners:
        """Return what makes the functions for a request: that of the request's chain."""
        return self.overlappable if request.is_overlappable and self.overlappable is not None else self.runners

    def _call(
        self, runner: Runner, paths: Sequence[Path], values: Sequence[Values], request: CollectiveRequest
    ) -> list[Values]:
        """Emit a callback at the end of its chain; return, by path, what the runner makes of the local values."""
        operands = [value for path_values in values for value in path_values]
        is_overlappable, n_values = request.is_overlappable and self.overlappable is not None, len(operands)

        def run(*shards: np.ndarray) -> list[np.ndarray]:
            return runner(*shards[:n_values])

        # The values that must have been computed before are operands too, for the same reason as the chain is one of data.
        results = iter(self.call(run, [*operands, *request.after], [operands[0].dtype] * n_values, is_overlappable))
        by_path = [[next(results) for _ in path_values] for path_values in values]
        for path, path_results in zip(paths, by_path, strict=True):
            for result in path_results:
                result.set_shape(shape_after(path.steps[-1], path.shape))
        return by_path

    def call(
        self, run: Runner, operands: Sequence[tf.Tensor], dtypes: Sequence[tf.DType], is_overlappable: bool = False
    ) -> Values:
        """Emit a callback at the end of a chain; return what ``run`` makes of the operands."""
        turn = self._turns[is_overlappable] if is_overlappable in self._turns else tf.constant(_TURN)
        turn, *results = emit_callback(run, turn, operands, dtypes, OVERLAPPABLE_NAME if is_overlappable else NAME)
        self._turns[is_overlappable] = turn
        if self.overlappable is not None:
            # Without this TensorFlow has each callback wait for the one before, whatever chain that is in.
            turn.graph.experimental_acd_manager.run_independently(turn.op)
        return results


def emit_callback(
    run: Runner, turn: tf.Tensor, operands: Sequence[tf.Tensor], dtypes: Sequence[tf.DType], name: str = NAME
) -> list[tf.Tensor]:
    """Emit a callback that waits for its turn; return the next one's, and what ``run`` makes of the operands."""

    def in_order(turn: np.ndarray, *arrays: np.ndarray) -> Sequence[np.ndarray]:
        keep_thread_state()
        return [_TURN, *run(*arrays)]

    tensors = tf.numpy_function(in_order, [turn, *operands], [tf.int32, *dtypes], stateful=True, name=name)
    turn, *results = tensors if dtypes else [tensors] if isinstance(tensors, tf.Tensor) else tensors
    turn.set_shape([])
    return [turn, *results]
