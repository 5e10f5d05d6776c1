"""Choose how a tensor goes from some devices to others: whether it is resharded before it is sent, or after.

- *Send, then reshard*: where several devices of a machine want the same part and it comes from another machine, each is sent
  a piece of it, and they gather the pieces among themselves. Then the part crosses between the machines once.
- *Reshard, then send*: where sums are still pending, they are completed by a reduce-scatter and sent as the blocks that this
  leaves, instead of by an all-reduce, which moves twice as much.

Neither moves more: pieces that are gathered inside of a machine are those that would have been sent whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations

from .bounds import extents
from .cross_mesh import CrossMesh, Devices
from .layout import Axes, Layout, Shape


@lru_cache(maxsize=1024)
def cheapest_way(
    source: Layout,
    target: Layout,
    shape: Shape,
    source_devices: Devices,
    target_devices: Devices,
    machine_of: tuple[int, ...],
) -> CrossMesh:
    """Return the way from a layout to another by which the fewest bytes cross between machines.

    The tensor is brought to its ``source`` before it is sent, and from its ``target`` to the wanted layout, by collectives
    of the devices at that end.

    Args:
        source: how the tensor is produced; it may be partial.
        machine_of: for each device the number of its machine.
    """
    direct = CrossMesh(sent_layout(source, shape), target, shape, source_devices, target_devices)
    finer = (replace(direct, target=layout) for layout in _finer(target, shape, target_devices, machine_of))
    return min([direct, *finer], key=lambda way: bytes_between(way, machine_of))


def sent_layout(source: Layout, shape: Shape) -> Layout:
    """Return the layout in which a tensor is sent that was produced in another one.

    Pending sums are completed by a reduce-scatter over all their axes if that is possible.
    """
    whole = source.with_partial(())
    return next(_split_further(whole, source.partial, shape), whole) if source.partial else whole


def bytes_between(way: CrossMesh, machine_of: Sequence[int]) -> int:
    """Return the elements that are sent from one machine to another; their bytes, of a type of one byte."""
    return sum(
        math.prod(extents(part.bounds))
        for part in way.parts
        if machine_of[way.source_devices[part.sender]] != machine_of[way.target_devices[part.receiver]]
    )


def _finer(target: Layout, shape: Shape, devices: Devices, machine_of: Sequence[int]) -> Iterator[Layout]:
    """Yield layouts from which a gather inside of machines leads to a target, those with the fewest axes to gather first."""
    mesh = target.mesh
    replicas = [
        axis
        for axis in mesh.axes
        if axis not in target.used_axes
        and all(len({machine_of[devices[i]] for i in mesh.group((axis,), rank)}) == 1 for rank in range(mesh.n_devices))
    ]
    for count in range(1, len(replicas) + 1):
        for axes in combinations(replicas, count):
            yield from _split_further(target, axes, shape)


def _split_further(layout: Layout, axes: Axes, shape: Shape) -> Iterator[Layout]:
    """Yield the layouts in which axes split one dimension further than in ``layout``."""
    for dimension, split in enumerate(layout.splits):
        finer = Layout(layout.mesh, (*layout.splits[:dimension], (*split, *axes), *layout.splits[dimension + 1 :]))
        if finer.fits(shape):
            yield finer
