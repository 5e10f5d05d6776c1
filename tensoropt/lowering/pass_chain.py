"""Have a rank run the passes of micro-batches one behind the other, in the order in which they are emitted.

All that a pass computes waits, by control dependencies, for what the pass before it has computed. So only the residuals of
the micro-batches in flight are alive. A rank that has several stages of a pipeline runs the passes of all in one chain.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import tensorflow as tf

from .order import BackwardRecord, put_in_order


class ForwardOperators(NamedTuple):
    """The operators of a forward pass, by their numbers in the graph; and what they wait for.

    Attributes:
        owner: who emitted it, of those that share a chain.
    """

    owner: object
    micro_batch: int
    start: int
    end: int
    waits: list[tf.Tensor]


class BackwardOperators(NamedTuple):
    """A backward pass that is to be put in order: numbers of the first operator before it and in it, and its record.

    Attributes:
        urgent: the operators whose results another stage waits for.
    """

    start: int
    n_forward: int
    record: BackwardRecord
    urgent: list[tf.Operation]


@dataclass(eq=False)
class PassChain:
    """The passes of one training step on a rank.

    Attributes:
        order_lag: for how many operators the backward pass may go on while a gradient is on its way (see :mod:`.order`);
            None where backward passes aren't put in order.
        n_stages: the number of stages whose passes these are.
    """

    n_micro_batches: int
    order_lag: float | None = None
    n_stages: int = 1
    _waits: list[tf.Tensor] = field(default_factory=list)
    _forward: ForwardOperators | None = None
    _last: BackwardOperators | None = None
    _n_backward: int = 0
    _n_ended: int = 0
    _after: BackwardRecord = field(default_factory=BackwardRecord)

    @contextmanager
    def behind(self) -> Iterator[None]:
        """Return a context in which all that is emitted runs behind the pass that was emitted before."""
        with tf.control_dependencies([tf.group(*self._waits)] if self._waits else []):
            yield

    def add_forward(self, owner: object, micro_batch: int, start: int, results: list[tf.Tensor]) -> None:
        """Add a forward pass that has been emitted since the graph had ``start`` operators, with what it has computed."""
        self._forward = ForwardOperators(owner, micro_batch, start, _graph().version, self._waits)
        self._waits = results or self._waits

    def begin_backward(self, owner: object, micro_batch: int) -> tuple[int, int]:
        """Begin a backward pass. Right behind its own forward pass it waits for what that waits for.

        Returns:
            The numbers of the first operator of its forward pass, if that comes right before, and of its own first one.
        """
        forward, self._forward = self._forward, None
        if forward is not None and forward.owner is owner and forward.micro_batch == micro_batch:
            self._waits = forward.waits
            return forward.start, forward.end
        return _graph().version, _graph().version

    def add_backward(self, emitted: BackwardOperators, is_last: bool, waits: list[tf.Tensor]) -> None:
        """Add a backward pass that has been emitted, and put it in order; the last one of all waits for the updates.

        Args:
            is_last: whether it is the last pass of its micro-batch in its stage.
            waits: what all that is emitted next waits for.
        """
        self._forward, self._last = None, emitted
        self._n_backward += is_last
        if self.order_lag is not None and self._n_backward < self.n_stages * self.n_micro_batches:
            operators = _graph().get_operations()
            put_in_order(operators, emitted.n_forward, emitted.record, self.order_lag, emitted.start, emitted.urgent)
        self._waits = waits

    def end(self, record: BackwardRecord) -> None:
        """Put the last backward pass and the updates in order, when the updates of all stages have been emitted.

        Args:
            record: the backward passes that were emitted outside of micro-batches for a stage.
        """
        assert self._last is not None
        self._after, self._n_ended = self._after.add(record), self._n_ended + 1
        if self.order_lag is not None and self._n_ended == self.n_stages:
            start, n_forward, last, urgent = self._last
            put_in_order(_graph().get_operations(), n_forward, last.add(self._after), self.order_lag, start, urgent)


def _graph() -> tf.Graph:
    return tf.compat.v1.get_default_graph()
