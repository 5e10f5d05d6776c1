"""Run collectives between processes by mpi4py, with one sub-communicator for each set of mesh axes.

MPI only moves bytes here. Sums are computed by NumPy, always in the order of the group's ranks. So every dtype works
(bfloat16, bool), replicas are equal to the bit on all ranks, and the results equal those of the simulation. On shared memory
they are faster than Open MPI 5's own from 4 MB up:
``mpirun -n 2 python -m mpi4py tests/runtime/collectives/collectives_worker.py time`` measures that.

    all-reduce       2 members           exchange halves, add, exchange sums; with naps in parts
                     small arrays        all-gather, add
                     else                all-to-all of chunks, add, all-gather in place
    reduce-scatter                       all-to-all, add

Values to be added are received in rounds, so that they take no more than ``ROUND_BYTES``.

A communicator may give way to another one, whose collectives run at the same time in another thread: the overlappable
chain gives way to the critical one. It has its own groups, so that messages of the two never mix, and its own workspace. It
exchanges everything in parts, since a critical message leaves the link only after the parts under way. It naps longer, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from ...costs.collective_workspace import GATHER_AND_ADD_BYTES
from ...reschedule.layout import Axes, Shape, axes_text, block_bounds
from ...reschedule.mesh import Mesh
from ...reschedule.rank_steps import ROUND_BYTES
from ...reschedule.summing import reduce_in_order
from .outbox import Outbox, as_mpi_buffer, parts_of, wait
from .receive_buffers import OwnMemory, keep_freed_memory

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

Array = npt.NDArray[Any]

_HALVES, _SUMS, _SHARDS = 1, 2, 3  # tags of messages


class MpiCommunicator(OwnMemory):
    """A :class:`~tensoropt.reschedule.communicator.Communicator` over the processes of an MPI communicator.

    Rank r of ``comm`` is device r of ``mesh``. Forming a group is itself a collective of all ranks, so groups are formed
    only by :meth:`prepare`, never on first use. ``on_collective`` is called before each collective begins.

    MPI waits by polling, which takes a core. With ``naps`` a waiting rank sleeps between its polls, and leaves the core to
    computation. A communicator that ``gives_way`` to another naps, too.
    """

    def __init__(
        self,
        comm: Comm,
        mesh: Mesh,
        on_collective: Callable[[], None] = lambda: None,
        naps: bool = False,
        gives_way: bool = False,
    ) -> None:
        if comm.size != mesh.n_devices:
            raise ValueError(f"{comm.size} MPI ranks, but mesh {mesh} has {mesh.n_devices} devices; start that many")
        super().__init__()
        keep_freed_memory()
        self._comm, self._mesh = comm, mesh
        self._groups: dict[Axes, Comm] = {}
        self._on_collective = on_collective
        self._naps = naps or gives_way
        self._gives_way = gives_way

    def prepare(self, axes_list: Iterable[Axes]) -> None:
        """Form the groups of these sets of axes. All ranks must call this with the same sets.

        Raises:
            RuntimeError: the ranks ask for different groups. It is raised on every rank.
        """
        self._on_collective()
        own_groups = sorted({tuple(sorted(axes)) for axes in axes_list} - self._groups.keys())
        all_groups = self._comm.allgather(own_groups)
        if any(groups != own_groups for groups in all_groups):
            differing = next(rank for rank, groups in enumerate(all_groups) if groups != all_groups[0])
            raise RuntimeError(
                f"the ranks prepare different groups: rank 0 {all_groups[0]}, rank {differing} {all_groups[differing]}; "
                "all ranks must run the same plan"
            )
        rank = self._comm.rank
        for axes in own_groups:
            other_axes = tuple(axis for axis in self._mesh.axes if axis not in axes)
            self._groups[axes] = self._comm.Split(self._mesh.index_along(other_axes, rank), rank)

    def free(self) -> None:
        """Free the groups in MPI. All ranks must call this."""
        for axes in sorted(self._groups):
            self._groups.pop(axes).Free()

    def all_gather(self, axes: Axes, send: Array, recv_shapes: Sequence[Shape], out: Array | None = None) -> list[Array]:
        """Return the members' ``send``, in group order: consecutive parts of ``out``, or of a new array."""
        group = self._begun(axes)
        counts = [prod(shape) for shape in recv_shapes]
        received = self._flat_out(out, sum(counts), send.dtype)
        if self._gives_way:
            self._exchange_by_parts(group, [send.reshape(-1)] * group.size, _split(received, [(count,) for count in counts]))
        elif len(set(counts)) == 1:
            self._call(group, "Allgather", as_mpi_buffer(send), as_mpi_buffer(received))
        else:
            self._call(group, "Allgatherv", as_mpi_buffer(send), (as_mpi_buffer(received), counts))
        return _split(received, recv_shapes)

    def all_to_all(
        self,
        axes: Axes,
        sends: Sequence[Array],
        recv_shapes: Sequence[Shape],
        out: Array | None = None,
        joined: Array | None = None,
    ) -> list[Array]:
        """Return what the members send to this rank, in group order: consecutive parts of ``out``, or of a new array."""
        group = self._begun(axes)
        counts = [prod(shape) for shape in recv_shapes]
        received = self._flat_out(out, sum(counts), sends[0].dtype)
        self._exchange(group, sends, received, counts, joined)
        return _split(received, recv_shapes)

    def reduce_scatter(self, axes: Axes, sends: Sequence[Array], own_shape: Shape, joined: Array | None = None) -> Array:
        """Return the sum of what the members send to this rank, added in group order."""
        group = self._begun(axes)
        result = self.empty(own_shape, sends[0].dtype)
        # All ranks send arrays of the same size to a member.
        most_bytes = max(block.nbytes for block in sends) * len(sends)
        n_rounds = max(1, -(-most_bytes // ROUND_BYTES))
        for number in range(n_rounds):
            parts = [slice(*block_bounds(block.size, n_rounds, number)) for block in sends]
            target = result.reshape(-1)[parts[group.rank]]
            received = self.scratch("reduce", target.size * len(sends), result.dtype)
            self._exchange(group, sends, received, [target.size] * len(sends), joined, parts)
            reduce_in_order(_split(received, [target.shape] * len(sends)), out=target)
        return result

    def all_reduce(self, axes: Axes, array: Array, op: str = "sum") -> Array:
        """Return the members' arrays combined by "sum", "max" or "min" in group order, with equal bits on every member."""
        group = self._begun(axes)
        array = np.ascontiguousarray(array).reshape(array.shape)
        result = self.empty(array.shape, array.dtype)
        if group.size == 2:
            for part in parts_of(array.reshape(-1), 2 * ROUND_BYTES):
                self._reduce_halves(group, array.reshape(-1)[part], op, result.reshape(-1)[part])
        elif array.nbytes * group.size <= GATHER_AND_ADD_BYTES:
            received = self.scratch("reduce", array.size * group.size, array.dtype)
            self._call(group, "Allgather", as_mpi_buffer(array), as_mpi_buffer(received))
            reduce_in_order(_split(received, [array.shape] * group.size), op, result)
        else:
            for part in parts_of(array.reshape(-1), ROUND_BYTES):
                self._reduce_chunks(group, array.reshape(-1)[part], op, result.reshape(-1)[part])
        return result

    def _reduce_halves(self, group: Comm, flat: Array, op: str, result: Array) -> None:
        """Reduce on two members: the first reduces the first half, the second the rest; then they exchange the results."""
        middle, peer = flat.size // 2, 1 - group.rank
        halves = slice(None, middle), slice(middle, None)
        own_half, other_half = halves[group.rank], halves[peer]
        received = self.scratch("reduce", result[own_half].size, flat.dtype)

        def reduce(part: slice) -> None:
            blocks = flat[own_half][part], received[part]
            reduce_in_order(blocks if group.rank == 0 else blocks[::-1], op, result[own_half][part])

        if self._naps:
            # In parts that keep the link always busy: while the last half is added, sums of the parts before are on their
            # way. All receives are posted at the start, so that sends complete whatever the other member sends first.
            outbox = Outbox(group, self._gives_way)
            arriving = outbox.arriving(received, peer, _HALVES)
            sums = outbox.arriving(result[other_half], peer, _SUMS)
            outbox.add(flat[other_half], peer, _HALVES)
            for part, request in arriving:
                outbox.wait_for([request])
                reduce(part)
                outbox.add(result[own_half][part], peer, _SUMS)
            outbox.empty()
            outbox.wait_for([request for _, request in sums])
            return
        group.Sendrecv(as_mpi_buffer(flat[other_half]), peer, recvbuf=as_mpi_buffer(received), source=peer)
        reduce(slice(None))
        group.Sendrecv(as_mpi_buffer(result[own_half]), peer, recvbuf=as_mpi_buffer(result[other_half]), source=peer)

    def _exchange_by_parts(self, group: Comm, sends: Sequence[Array], received: Sequence[Array]) -> None:
        """Send ``sends[i]`` to member i and receive ``received[i]`` from it, in parts; all arrays are flat.

        All receives are posted at the start, so that sends complete whatever a member sends first.
        """
        outbox, rank = Outbox(group, self._gives_way), group.rank
        received[rank][...] = sends[rank]
        peers = [(rank + distance) % group.size for distance in range(1, group.size)]
        requests = [request for member in peers for _, request in outbox.arriving(received[member], member, _SHARDS)]
        for member in peers:
            outbox.add(sends[member], member, _SHARDS)
        outbox.empty()
        outbox.wait_for(requests)

    def _reduce_chunks(self, group: Comm, flat: Array, op: str, result: Array) -> None:
        """Reduce in chunks: member i reduces the i-th chunk. An element's sum doesn't depend on which chunk it is in."""
        n_members = group.size
        bounds = [block_bounds(flat.size, n_members, member) for member in range(n_members)]
        counts = [end - start for start, end in bounds]
        own_count = counts[group.rank]
        received = self.scratch("reduce", own_count * n_members, flat.dtype)
        self._exchange(group, [flat[start:end] for start, end in bounds], received, [own_count] * n_members, flat)
        start, end = bounds[group.rank]
        reduce_in_order(_split(received, [(own_count,)] * n_members), op, result[start:end])
        if self._gives_way:
            self._exchange_by_parts(group, [result[start:end]] * n_members, [result[start:end] for start, end in bounds])
            return
        self._call(group, "Allgatherv", MPI.IN_PLACE, (as_mpi_buffer(result), counts))

    def _exchange(
        self,
        group: Comm,
        sends: Sequence[Array],
        received: Array,
        counts: Sequence[int],
        joined: Array | None,
        parts: Sequence[slice] | None = None,
    ) -> None:
        """Send ``sends[i]``, or only the elements ``parts[i]`` of it, to member i; what arrives fills ``received``.

        ``joined`` is the flat array of which ``sends`` are consecutive parts, if there is one.
        """
        flat = [np.ascontiguousarray(block).reshape(-1) for block in sends]
        parts = parts or [slice(0, block.size) for block in sends]
        if self._gives_way:
            blocks = [block[part] for block, part in zip(flat, parts, strict=True)]
            self._exchange_by_parts(group, blocks, _split(received, [(count,) for count in counts]))
            return
        if joined is None:
            joined = self.scratch("joined", sum(block.size for block in flat), sends[0].dtype)
            for place, block in zip(_split(joined, [block.shape for block in flat]), flat, strict=True):
                place[...] = block
        starts = accumulate((block.size for block in flat[:-1]), initial=0)
        places = [start + part.start for start, part in zip(starts, parts, strict=True)]
        send_counts = [part.stop - part.start for part in parts]
        self._call(group, "Alltoallv", (as_mpi_buffer(joined), (send_counts, places)), (as_mpi_buffer(received), counts))

    def _call(self, group: Comm, name: str, *buffers: Any) -> None:
        """Call a collective of MPI by its name; with naps, its non-blocking form."""
        if self._naps:
            wait([getattr(group, f"I{name.lower()}")(*buffers)])
        else:
            getattr(group, name)(*buffers)

    def _flat_out(self, out: Array | None, count: int, dtype: np.dtype[Any]) -> Array:
        if out is None:
            return self.empty((count,), dtype)
        if out.size != count or out.dtype != dtype or not out.flags.c_contiguous:
            raise ValueError(f"out has {out.size} elements of {out.dtype}, expected {count} of {dtype}, C-contiguous")
        return out.reshape(-1)

    def _begun(self, axes: Axes) -> Comm:
        """Return the group of a collective that begins."""
        group = self._groups.get(axes) or self._groups.get(tuple(sorted(axes)))
        if group is None:
            raise RuntimeError(
                f"no group was formed for axes {axes_text(axes)!r} of mesh {self._mesh}; "
                f"call prepare([{tuple(sorted(axes))}]) on all ranks before the first collective"
            )
        self._on_collective()
        return group


def _split(flat: Array, shapes: Sequence[Shape]) -> list[Array]:
    """Return consecutive parts of a flat array as views of these shapes."""
    ends = accumulate(prod(shape) for shape in shapes)
    return [flat[end - prod(shape) : end].reshape(shape) for shape, end in zip(shapes, ends, strict=True)]
