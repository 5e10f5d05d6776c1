"""Send tensors between stages: between processes by messages, or between the ranks of one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import tensorflow as tf

from ...lowering.localise import uniform_shape
from ...lowering.operators import Values
from ...lowering.resharding.reshard import Resharder
from ...reschedule.cross_mesh import CrossMesh


@dataclass(frozen=True, slots=True)
class Message:
    """A tensor that is on its way from one stage to another.

    Attributes:
        number: a number that no other message of the function has.
        way: which rank sends what to whom.
        dtype: TensorFlow's name of the type.
        micro_batch: the micro-batch; -1 for what is sent once a step.
    """

    tensor: str
    number: int
    way: CrossMesh
    dtype: str
    is_gradient: bool
    micro_batch: int

    def __str__(self) -> str:
        subject = f"the gradient of {self.tensor}" if self.is_gradient else self.tensor
        return f"{subject} of micro-batch {self.micro_batch}" if self.micro_batch >= 0 else subject


class Transfers(Protocol):
    """A carrier of messages between the stages that are emitted into one function."""

    def send(self, message: Message, values: Values, resharder: Resharder) -> Values:
        """Emit the sending of the local values of the source's ranks; return values that are there when they are sent.

        Args:
            resharder: that of their stage.
        """

    def receive(self, message: Message, resharder: Resharder, after: Sequence[tf.Tensor] = ()) -> Values:
        """Emit the reception of a message; return the local values of the target's ranks.

        Args:
            after: local values that must have been computed before a rank waits for the message.
        """


@dataclass
class EmulatedTransfers:
    """Transfers where all stages are in this process, in one function."""

    _sent: dict[int, Values] = field(default_factory=dict)

    def send(self, message: Message, values: Values, resharder: Resharder) -> Values:
        """Emit the way of the shards of all ranks to those of the target's."""
        way = message.way
        n_ranks = way.target.mesh.n_devices
        shards = tf.numpy_function(lambda *arrays: way.simulate(arrays), values, [message.dtype] * n_ranks, stateful=False)
        for shard in shards:
            shard.set_shape(uniform_shape(way.target, way.shape))
        self._sent[message.number] = list(shards)
        return []

    def receive(self, message: Message, resharder: Resharder, after: Sequence[tf.Tensor] = ()) -> Values:
        """Return the shards that were sent."""
        return self._sent.pop(message.number)
