"""Send tensors between the processes of stages by MPI.

A sender never waits: its parts leave while it computes. A receiver waits where its order of passes has come to what it
receives. Both are callbacks in the chain of the rank's collectives, so that a rank is in one of them at a time, in the order
of the program; and since that is a part of one order of all stages, none waits for another in a circle.

What is large goes in packets that MPI sends at once. A larger one would wait until its receiver asks for it, and then until
its sender comes back to MPI.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf
from mpi4py import MPI

from ...common.process.watchdog import ChainState
from ...lowering.localise import uniform_shape
from ...lowering.operators import Values
from ...lowering.resharding.reshard import Resharder
from ...reschedule.bounds import extents
from ..collectives.outbox import Array, as_mpi_buffer, parts_of, wait
from .transfers import Message

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

PACKET_BYTES = 1 << 19
"""The largest packet: half of what is sent at once to other machines (:func:`..mpi_start.send_at_once`)."""
FIRST_TAG = 16
"""Below are the tags of collectives' messages, which are of communicators of their own; the distance costs nothing."""
_SENT = np.zeros((), np.int32)


@dataclass
class Sending:
    """The parts that this process has sent and that may not have left yet: their memory is kept until then."""

    parts: list[tuple[MPI.Request, Array]] = field(default_factory=list)

    def clear(self) -> None:
        """Forget the parts that have left."""
        self.parts = [(request, array) for request, array in self.parts if not request.Test()]


@dataclass
class MpiTransfers:
    """Transfers between processes, each of which is one rank of its stages.

    Attributes:
        comm: all devices of all stages, in order.
        waiting: records what this rank waits for.
        sending: what is on its way, over all steps.
    """

    comm: Comm
    waiting: ChainState
    sending: Sending

    def send(self, message: Message, values: Values, resharder: Resharder) -> Values:
        """Emit the sending of this rank's parts; return a number that is there when they are on their way."""
        (value,), way, tag = values, message.way, FIRST_TAG + message.number
        (rank,) = resharder.backend.ranks
        parts = way.sent_by(rank)

        def run(shard: Array) -> list[Array]:
            self.sending.clear()
            for part in parts:
                packed = resharder.backend.empty(extents(part.bounds), shard.dtype)
                packed[...] = way.part_of(part, shard)
                for packet in packets(packed):
                    request = self.comm.Isend(packet, way.target_devices[part.receiver], tag)
                    self.sending.parts.append((request, packed))
            return [_SENT]

        # Also where this rank sends nothing, since another one of its stage does: all have the same graph.
        return resharder.emitter.call(run, [value], [tf.int32])

    def receive(self, message: Message, resharder: Resharder, after: Sequence[tf.Tensor] = ()) -> Values:
        """Emit the reception of this rank's parts, behind some values; return its shard."""
        way, tag, dtype = message.way, FIRST_TAG + message.number, tf.as_dtype(message.dtype)
        (rank,) = resharder.backend.ranks
        parts, shape = way.received_by(rank), extents(way.target.bounds(way.shape, rank))
        empty = resharder.backend.empty

        def run(*computed: Array) -> list[Array]:
            shard = empty(shape, dtype.as_numpy_dtype)
            places = way.places(rank, shard)
            arrays = [place if place.flags.c_contiguous else empty(place.shape, place.dtype) for place in places]
            with self.waiting.within(f"the reception of {message}"):
                requests = [
                    self.comm.Irecv(packet, way.source_devices[part.sender], tag)
                    for part, array in zip(parts, arrays, strict=True)
                    for packet in packets(array)
                ]
                wait(requests, self.sending.clear)
            for place, array in zip(places, arrays, strict=True):
                if array is not place:
                    place[...] = array
            return [shard]

        (shard,) = resharder.emitter.call(run, after, [dtype])
        shard.set_shape(uniform_shape(way.target, way.shape))
        return [shard]


def packets(array: Array) -> list[Array]:
    """Return a contiguous array's elements in order as MPI can move them, in parts of at most ``PACKET_BYTES``."""
    flat = as_mpi_buffer(array.reshape(-1))
    return [flat[part] for part in parts_of(flat, PACKET_BYTES)]
