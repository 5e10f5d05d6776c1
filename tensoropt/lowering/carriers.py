"""What puts paths that communicate into a graph: callbacks into Python, one for each path.

All callbacks are chained in the order in which they were created, which is the same on every rank: no deadlock, by
construction. The chain is of data, a number that each callback takes from the one before: TensorFlow's graph optimizer
removes control dependencies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import tensorflow as tf

from ..profiling.python_calls import keep_thread_state
from ..reschedule.path import Path
from .local_steps import shape_after
from .operators import Values

Runner = Callable[..., list[np.ndarray]]
_TURN = np.zeros((), np.int32)


class Carrier(Protocol):
    """Emits into one graph the paths of the ranks that are built here."""

    def carry(self, path: Path, values: Values, reduction: str, operator: str, what: str) -> Values:
        """Local values after a path with collectives.

        Args:
            reduction: "sum", or "max" for a path of one all-reduce that takes maxima.
            operator: for which they are.
            what: the collectives, for messages.
        """
        ...


class Runners(Protocol):
    """Carries out paths on arrays."""

    def runner(self, path: Path, what: str) -> Runner:
        """A function from the pieces of the ranks before a path to those after it; ``what`` says it in messages."""
        ...

    def maximum(self, path: Path, what: str) -> Runner:
        """The same for a path of one all-reduce that takes maxima instead of sums."""
        ...


@dataclass
class Callbacks:
    """Carries paths by calling back into Python."""

    runners: Runners
    _turn: tf.Tensor | None = None

    def carry(self, path: Path, values: Values, reduction: str, operator: str, what: str) -> Values:
        runner = self.runners.runner(path, what) if reduction == "sum" else self.runners.maximum(path, what)

        def in_turn(turn: np.ndarray, *pieces: np.ndarray) -> Sequence[np.ndarray]:
            keep_thread_state()
            return [_TURN, *runner(*pieces)]

        turn = tf.constant(_TURN) if self._turn is None else self._turn
        types = [tf.int32, *[values[0].dtype] * len(values)]
        self._turn, *results = tf.numpy_function(in_turn, [turn, *values], types, stateful=True, name="collective")
        self._turn.set_shape([])
        for result in results:
            result.set_shape(shape_after(path.steps[-1], path.shape))
        return list(results)
