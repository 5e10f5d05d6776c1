"""Sum small gradients in buckets: many in one collective.

For a gradient of few bytes a collective is mostly its latency. Only an update waits for the sum of a variable's gradient. So
small gradients wait for each other, until a bucket is full or the backward pass is over, and are then summed together: an
update is put off no longer than that, and nothing else is put off. A gradient function has to return something before that:
a stand-in for the sum, which gets its value when the bucket is sent. No cycle can arise: only updates read what comes out of
a bucket, and what is emitted after the backward pass finds all buckets sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from ...reschedule.layout import Axes
from ...reschedule.path import Path
from ...sharding.resharding import BUCKET_BYTES
from ..operators import Values

_Key = tuple[Axes, str]


@dataclass
class PendingGradients:
    """The gradients that wait to be summed over some axes.

    Attributes:
        paths: for each gradient, its path of one all-reduce.
        operators: by path, the operator that the resharding is for.
        values: by path, the local gradients.
        stand_ins: by path, the operators that get the sums.
        n_bytes: the size of the gradients of one rank, in bytes.
    """

    paths: list[Path] = field(default_factory=list)
    operators: list[str] = field(default_factory=list)
    values: list[Values] = field(default_factory=list)
    stand_ins: list[list[tf.Operation]] = field(default_factory=list)
    n_bytes: int = 0


@dataclass
class Buckets:
    """The buckets of one graph, by axes and dtype.

    Attributes:
        send: emits one collective for several paths, given their values and operators; returns the sums, by path.
    """

    send: Callable[[Sequence[Path], Sequence[Values], Sequence[str]], list[Values]]
    _waiting: dict[_Key, PendingGradients] = field(default_factory=dict)

    def add(self, path: Path, values: Values, operator: str) -> Values:
        """Add gradients to a bucket; return stand-ins, which become the sums once the bucket has been sent."""
        (step,) = path.steps
        key = step.group_axes, values[0].dtype.name
        waiting = self._waiting.setdefault(key, PendingGradients())
        waiting.paths.append(path)
        waiting.operators.append(operator)
        waiting.values.append(values)
        stand_ins = [tf.identity(value, name="sum_in_bucket") for value in values]
        waiting.stand_ins.append([stand_in.op for stand_in in stand_ins])
        waiting.n_bytes += math.prod(path.source.largest_local_shape(path.shape)) * values[0].dtype.size
        if waiting.n_bytes >= BUCKET_BYTES:
            self._send(key)
        return stand_ins

    def send_all(self) -> None:
        """Send all buckets, in the order in which they were begun."""
        for key in tuple(self._waiting):
            self._send(key)

    def _send(self, key: _Key) -> None:
        """Emit the collective of a bucket, and give the stand-ins their values."""
        waiting = self._waiting.pop(key)
        sums = self.send(waiting.paths, waiting.values, waiting.operators)
        for stand_ins, of_path in zip(waiting.stand_ins, sums, strict=True):
            for stand_in, value in zip(stand_ins, of_path, strict=True):
                stand_in._update_input(0, value)
