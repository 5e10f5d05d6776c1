"""What puts paths that communicate into a graph: callbacks into Python, one for each path.

All callbacks of a chain are chained in the order in which they were created, which is the same on every rank. The chain is
of data, a number that each callback takes from the one before: TensorFlow's graph optimizer removes control dependencies.

There is one chain, or one more for paths that only updates wait for: their megabytes are then on their way while the passes
go on, and don't stand in front of what the passes wait for. Either way there is no deadlock, by construction. The ranks'
graphs are equal, so they are one graph in which a collective is one operator of all its members, and chains and data never
go round in it. Of what isn't done yet take an operator that needs nothing which isn't done. Each chain holds back one thread
of TensorFlow's at most, and there is one more thread than chains: so every rank comes to this operator, whatever it waits
for in the other chain, and it gets done.
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
NAME, TRAILING_NAME = "collective", "trailing_collective"
"""Of callbacks' operators."""


@dataclass(frozen=True, slots=True)
class CollectiveRequest:
    """What a path is taken for.

    Attributes:
        operator: for which its collectives are.
        what: its collectives, for messages.
        reduction: "sum", or "max" for a path of one all-reduce that takes maxima.
        is_trailing: whether only updates wait for it.
        after: values that must be there before.
    """

    operator: str
    what: str
    reduction: str = "sum"
    is_trailing: bool = False
    after: tuple[tf.Tensor, ...] = ()


class Carrier(Protocol):
    """Emits into one graph the paths of the ranks that are built here."""

    @property
    def joins(self) -> bool:
        """Whether it has several paths share a collective."""
        ...

    def carry(self, path: Path, values: Values, request: CollectiveRequest) -> Values:
        """Local values after a path with collectives."""
        ...

    def carry_together(self, paths: Sequence[Path], values: Sequence[Values], request: CollectiveRequest) -> list[Values]:
        """Local values, by path, after paths that are one all-reduce each, over the same axes."""
        ...


class Runners(Protocol):
    """Carries out paths on arrays."""

    def runner(self, path: Path, what: str) -> Runner:
        """A function from the pieces of the ranks before a path to those after it; ``what`` says it in messages."""
        ...

    def maximum(self, path: Path, what: str) -> Runner:
        """The same for a path of one all-reduce that takes maxima instead of sums."""
        ...

    def together(self, paths: Sequence[Path], what: str) -> Runner:
        """The same for paths of one all-reduce each, over the same axes: pieces and results path by path."""
        ...


@dataclass
class Callbacks:
    """Carries paths by calling back into Python.

    Attributes:
        trailing: carries out what only updates wait for, in a chain of its own; None for one chain.
    """

    runners: Runners
    trailing: Runners | None = None
    _turns: dict[bool, tf.Tensor] = field(default_factory=dict)

    @property
    def joins(self) -> bool:
        return True

    def carry(self, path: Path, values: Values, request: CollectiveRequest) -> Values:
        runners = self._runners(request)
        runner = runners.runner(path, request.what) if request.reduction == "sum" else runners.maximum(path, request.what)
        results = self._call(runner, values, request)
        for result in results:
            result.set_shape(shape_after(path.steps[-1], path.shape))
        return results

    def carry_together(self, paths: Sequence[Path], values: Sequence[Values], request: CollectiveRequest) -> list[Values]:
        runner = self._runners(request).together(paths, request.what)
        results = iter(self._call(runner, [value for of_path in values for value in of_path], request))
        summed = [[next(results) for _ in of_path] for of_path in values]
        for path, of_path in zip(paths, summed, strict=True):
            for result in of_path:
                result.set_shape(shape_after(path.steps[-1], path.shape))
        return summed

    def _runners(self, request: CollectiveRequest) -> Runners:
        return self.trailing if request.is_trailing and self.trailing is not None else self.runners

    def _call(self, runner: Runner, values: Values, request: CollectiveRequest) -> Values:
        """What a runner makes of local values, in its turn."""
        trails, n_values = request.is_trailing and self.trailing is not None, len(values)

        def in_turn(turn: np.ndarray, *pieces: np.ndarray) -> Sequence[np.ndarray]:
            keep_thread_state()
            return [_TURN, *runner(*pieces[:n_values])]

        turn = self._turns[trails] if trails in self._turns else tf.constant(_TURN)
        types = [tf.int32, *[values[0].dtype] * len(values)]
        # What must be there before is an operand as well, for the same reason as the turn.
        operands = [turn, *values, *request.after]
        name = TRAILING_NAME if trails else NAME
        turn, *results = tf.numpy_function(in_turn, operands, types, stateful=True, name=name)
        turn.set_shape([])
        self._turns[trails] = turn
        if self.trailing is not None:
            # Else TensorFlow has each callback wait for the one before, whatever chain that is in.
            turn.graph.experimental_acd_manager.run_independently(turn.op)
        return list(results)
