"""Bring a tensor from a layout on some devices to a layout on others: which device sends which part to which.

The two meshes are of devices that differ, or of which some are the same: a device that has a part already keeps it. Neither
layout is partial. Each element that a device needs comes from one device that has it; where several have it, from itself,
else from one that is chosen so that all send about equally much.

OneFlow's Table 2 has the bytes for layouts over one dimension: |T| from split to split, p2 |T| to a replicated layout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .bounds import Bounds, extents, intersection, viewed
from .layout import Layout, Shape
from .path import ReschedulingError
from .summing import Array

Devices = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TransferPart:
    """A part of a tensor that one device sends to another, or to itself.

    Attributes:
        sender: the rank in the source's mesh.
        receiver: the rank in the target's mesh.
        bounds: which part of the tensor.
    """

    sender: int
    receiver: int
    bounds: Bounds


@dataclass(frozen=True, slots=True)
class CrossMesh:
    """The way of a tensor of ``shape`` from a layout on some devices to a layout on others.

    Attributes:
        source_devices: the number of each of the source's ranks among all devices.
        target_devices: the same of the target's ranks.
    """

    source: Layout
    target: Layout
    shape: Shape
    source_devices: Devices
    target_devices: Devices

    def __post_init__(self) -> None:
        for layout, devices in ((self.source, self.source_devices), (self.target, self.target_devices)):
            if layout.partial:
                raise ReschedulingError(f"layout {layout} is partial; complete the sums before it leaves its devices")
            if len(devices) != layout.mesh.n_devices or len(set(devices)) != len(devices):
                raise ReschedulingError(f"mesh {layout.mesh} has {layout.mesh.n_devices} devices, got {devices}")
            if len(layout.splits) != len(self.shape) or not layout.fits(self.shape):
                raise ReschedulingError(f"layout {layout} on mesh {layout.mesh} doesn't fit {self.shape}")

    @property
    def parts(self) -> tuple[TransferPart, ...]:
        """All parts, receiver by receiver."""
        return _parts(self)

    def sent_by(self, rank: int) -> tuple[TransferPart, ...]:
        """Return the parts that a rank of the source's mesh sends."""
        return tuple(part for part in self.parts if part.sender == rank)

    def received_by(self, rank: int) -> tuple[TransferPart, ...]:
        """Return the parts that a rank of the target's mesh receives."""
        return tuple(part for part in self.parts if part.receiver == rank)

    def part_of(self, part: TransferPart, shard: Array) -> Array:
        """Return a view of the sender's shard: a part of it."""
        return viewed(shard, part.bounds, self.source.bounds(self.shape, part.sender))

    def places(self, rank: int, shard: Array) -> list[Array]:
        """Return views of the shard of a rank of the target's mesh: its parts, in the order of :meth:`received_by`."""
        own = self.target.bounds(self.shape, rank)
        return [viewed(shard, part.bounds, own) for part in self.received_by(rank)]

    def simulate(self, shards: Sequence[Array]) -> list[Array]:
        """Return the shards of all ranks of the target's mesh from those of all ranks of the source's."""
        results = []
        for rank in range(self.target.mesh.n_devices):
            results.append(np.empty(extents(self.target.bounds(self.shape, rank)), shards[0].dtype))
            for part, place in zip(self.received_by(rank), self.places(rank, results[-1]), strict=True):
                place[...] = self.part_of(part, shards[part.sender])
        return results


@lru_cache(maxsize=1024)
def _parts(way: CrossMesh) -> tuple[TransferPart, ...]:
    """Return all parts of a way, receiver by receiver; within a receiver, block by block of the source."""
    holders: dict[Bounds, list[int]] = {}
    for rank in range(way.source.mesh.n_devices):
        holders.setdefault(way.source.bounds(way.shape, rank), []).append(rank)
    sent = dict.fromkeys(range(way.source.mesh.n_devices), 0)
    parts = []
    for receiver, device in enumerate(way.target_devices):
        bounds = way.target.bounds(way.shape, receiver)
        for block, ranks in holders.items():
            common = intersection(block, bounds)
            size = math.prod(extents(common))
            if not size:
                continue
            own = [rank for rank in ranks if way.source_devices[rank] == device]
            sender = own[0] if own else min(ranks, key=lambda rank: (sent[rank], rank))
            if not own:
                sent[sender] += size
            parts.append(TransferPart(sender, receiver, common))
    return tuple(parts)
