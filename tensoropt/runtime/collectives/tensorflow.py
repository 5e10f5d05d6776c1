"""Run collectives by TensorFlow's own operators, inside the graph: over gRPC between CPUs, by NCCL between GPUs.

Each rank has a server (:mod:`.tensorflow_server`). A collective is found by two numbers that are equal on its members: the
group's, and its own within the group. An operator waits in a queue and blocks no thread, so that CPUs need no order.

    GPUs: one chain over all groups, in the order of emission, which is the same on all ranks. NCCL runs a GPU's kernels
    one after the other, and ranks that began with kernels of different groups would wait for each other for ever. The
    chain is one of data: a collective's number is added to 0, which is computed from the result before. Grappler may drop a
    control dependency, and can't see through this.

Blocks of a group must be equal in size, so the smaller ones are padded to the largest of all ranks. A gather or an
all-to-all of 0 elements would end the process, so none is emitted.

:func:`chain_checked` proves that what TensorFlow runs of an emitted function, after Grappler and partitioning, keeps the
chain. Each collective has a number that grows in the order of emission. The chain holds if each follows, by values or
control dependencies, from the one before: then from all before, and all ranks run them in one order. One pass through the
graph computes for each operator the largest number of a collective that it follows from. That must be the number before.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from ...lowering.localise import opaque
from ...lowering.resharding.in_graph import padded
from ...lowering.resharding.path_callbacks import Runner, emit_callback
from ...reschedule.layout import Axes
from ...reschedule.mesh import Mesh
from .element_types import packed, summable, summed, unpacked

if TYPE_CHECKING:
    from mpi4py.MPI import Comm
from collections.abc import Iterator
from contextlib import contextmanager
from graphlib import TopologicalSorter
from itertools import pairwise

from ...common.errors import TensorOptError

# The types as which elements move, by their size in bytes: those that have kernels on CPUs and GPUs.
_MOVED_AS = {2: tf.float16, 4: tf.float32, 8: tf.float64}
_BYTES = (tf.bool, tf.int8, tf.uint8)

_last_number = 0
"""The largest number that a collective of this process has. No number is used twice: TensorFlow keeps what belongs to it."""


class TensorFlowCollectives:
    """Collectives as operators of a graph, on flat tensors. Rank r of ``comm`` is device r of the mesh.

    Args:
        is_chained: whether collectives run one after the other, in the order in which they are emitted, as GPUs need.
        nccl: whether they run by NCCL, which alone has a reduce-scatter.
        in_order: whether sums are added in the order of ranks, for one device's bits, or as TensorFlow does.
    """

    joins = True

    def __init__(self, comm: Comm, mesh: Mesh, is_chained: bool = False, nccl: bool = False, in_order: bool = True) -> None:
        from mpi4py import MPI

        global _last_number
        _last_number = max(comm.allgather(_last_number))  # ranks that took no part in an earlier plan know a smaller one
        self._mesh, self._rank, self._is_chained = mesh, comm.rank, is_chained
        world = MPI.COMM_WORLD.Get_group()
        self._in_world = MPI.Group.Translate_ranks(comm.Get_group(), range(comm.size), world)
        self._before: tf.Tensor | None = None
        self.in_rank_order, self.reduce_scatter = in_order, self._reduce_scatter if nccl else None

    def running(self) -> AbstractContextManager[None]:
        """Return a context for a run of a function: under ``TENSOROPT_CHECK=1`` it proves that the chain holds."""
        return chain_checked() if self._is_chained and os.environ.get("TENSOROPT_CHECK") == "1" else nullcontext()

    def all_gather(self, axes: Axes, flat: tf.Tensor, counts: Sequence[int], name: str) -> tf.Tensor:
        """Return the members' tensors, concatenated; see :class:`...lowering.resharding.in_graph.GraphCollectives`."""
        max_count, members = max(counts), self._group(axes)
        if not max_count:
            return flat
        payload = _packed(flat)
        if min(counts) == max_count:
            return _unpacked(self._emit(tf.raw_ops.CollectiveGatherV2, axes, payload, name), flat.dtype)
        block = padded(payload, max_count - counts[self._rank])
        received = self._emit(tf.raw_ops.CollectiveGatherV2, axes, block, name)
        return _unpacked(_without_padding(received, max_count, [counts[rank] for rank in members]), flat.dtype)

    def all_to_all(self, axes: Axes, flat: tf.Tensor, counts: Sequence[Sequence[int]], name: str) -> tf.Tensor:
        """Return what the members send to this rank, concatenated; see the same."""
        max_count, members = max(map(max, counts)), self._group(axes)
        if not max_count:
            return flat
        payload = _packed(flat)
        n, is_even = len(members), min(map(min, counts)) == max_count
        payload = self._in_equal_blocks(payload, counts)
        inner_shape = payload.shape[1:]
        received = self._emit(tf.raw_ops.CollectiveAllToAllV2, axes, tf.reshape(payload, [n, max_count, *inner_shape]), name)
        received, place = tf.reshape(received, [n * max_count, *inner_shape]), members.index(self._rank)
        if not is_even:
            received = _without_padding(received, max_count, [counts[rank][place] for rank in members])
        return _unpacked(received, flat.dtype)

    def all_reduce(self, axes: Axes, value: tf.Tensor, op: str, name: str) -> tf.Tensor:
        """Return the members' tensors combined by "sum" or "max"."""
        merge = {"sum": "Add", "max": "Max"}[op]
        total = self._emit(tf.raw_ops.CollectiveReduceV2, axes, summable(value), name, merge_op=merge, final_op="Id")
        return summed(total, value.dtype)

    def _reduce_scatter(self, axes: Axes, flat: tf.Tensor, counts: Sequence[Sequence[int]], name: str) -> tf.Tensor:
        """Return this rank's part of the sum; see the same."""
        if not max(map(max, counts)):
            return flat
        blocks = self._in_equal_blocks(summable(flat), counts)
        operator, place = tf.raw_ops.CollectiveReduceScatterV2, self._group(axes).index(self._rank)
        total = self._emit(operator, axes, blocks, name, merge_op="Add", final_op="Id")
        return summed(total[: opaque(counts[self._rank][place], tf.int32)], flat.dtype)

    def _in_equal_blocks(self, row: tf.Tensor, counts: Sequence[Sequence[int]]) -> tf.Tensor:
        """Return what this rank sends to each member, padded to what any sends at most."""
        own_counts, max_count = list(counts[self._rank]), max(map(max, counts))
        if min(map(min, counts)) == max_count:
            return row
        blocks = tf.split(row, opaque(own_counts, tf.int32), num=len(own_counts))
        return tf.concat([padded(block, max_count - count) for block, count in zip(blocks, own_counts, strict=True)], axis=0)

    def _group(self, axes: Axes) -> tuple[int, ...]:
        """Return the members of this rank's group, by rank."""
        return tuple(sorted(self._mesh.group(axes, self._rank)))

    def call(self, run: Runner, operands: Sequence[tf.Tensor], dtypes: Sequence[tf.DType]) -> list[tf.Tensor]:
        """Emit a callback into the chain of collectives; return what ``run`` makes of the operands."""
        self._before, *results = emit_callback(run, self._turn(tf.compat.v1.get_default_graph()), operands, dtypes)
        return results

    def _turn(self, graph: tf.Graph) -> tf.Tensor:
        """Return 0, computed from the result before."""
        if self._before is None or self._before.graph is not graph:
            return tf.constant(0)
        # Not a control dependency, nor what could be computed in advance: the shape is hidden.
        return tf.minimum(tf.size(tf.compat.v1.placeholder_with_default(self._before, None)), 0)

    def _emit(self, operator: Any, axes: Axes, value: tf.Tensor, name: str, **attributes: Any) -> tf.Tensor:
        global _last_number
        _last_number += 1
        number, graph = tf.constant(_last_number, tf.int32), tf.compat.v1.get_default_graph()
        if self._is_chained:
            number += self._turn(graph)
        members = [self._in_world[rank] for rank in self._group(axes)]
        result: tf.Tensor = operator(
            input=value,
            group_size=len(members),
            group_key=opaque(group_key(members), tf.int32),
            instance_key=number,
            ordering_token=[],
            timeout_seconds=0,  # the watchdog's timeout holds
            name=name,
            **attributes,
        )
        self._before = result
        result.op._set_attr(NUMBER, tf.compat.v1.AttrValue(i=_last_number))
        # Else TensorFlow would have each wait for the one before, by control dependencies of all that has a state.
        manager = getattr(graph, "experimental_acd_manager", None)
        if manager is not None:
            manager.run_independently(result.op)
        return result


def group_key(members: Sequence[int]) -> int:
    """Return the number of a group, by its members' ranks among all: TensorFlow keeps a number's first members for good."""
    digest = hashlib.sha256(repr(list(members)).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def _packed(value: tf.Tensor) -> tf.Tensor:
    """Return a tensor in a type that all operators can move: bytes as numbers of 16 bits, which have each of theirs."""
    if value.dtype.size == 1:
        return tf.cast(value if value.dtype in _BYTES else tf.bitcast(value, tf.uint8), tf.float16)
    return packed(value, _MOVED_AS.values(), _MOVED_AS, "TensorFlow's collectives")


def _unpacked(value: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    if dtype.size == 1:
        return tf.cast(value, dtype) if dtype in _BYTES else tf.bitcast(tf.cast(value, tf.uint8), dtype)
    return unpacked(value, dtype)


def _without_padding(received: tf.Tensor, max_count: int, counts: Sequence[int]) -> tf.Tensor:
    """Return the first elements of each member's ``max_count``, concatenated; ``counts`` may differ between ranks."""
    starts = [member * max_count for member in range(len(counts))]
    parts = [received[start : start + opaque(count, tf.int32)] for start, count in zip(starts, counts, strict=True)]
    return tf.concat(parts, axis=0)


NUMBER = "_tensoropt_number"
"""The attribute with a collective's number."""
_SENDS, _RECEIVES = {"_Send", "_HostSend"}, {"_Recv", "_HostRecv"}
Node = tuple[int, str]
"""An operator: the number of its device's graph, and its name."""


@contextmanager
def chain_checked() -> Iterator[None]:
    """Return a context that checks each function that first runs within it; raise TensorOptError if one lost the chain."""
    from tensorflow.python.eager import context

    context.context().enable_run_metadata()
    try:
        yield
        metadata = context.context().export_run_metadata()
    finally:
        context.context().disable_run_metadata()
    for function in metadata.function_graphs:
        check_chain(function.partition_graphs)


def check_chain(graphs: Sequence[Any]) -> int:
    """Check that the collectives of a function's graphs (GraphDef, one for each device) are one chain; return their number.

    Raises:
        TensorOptError: two aren't in order.
    """
    numbers: dict[Node, int] = {}
    sources: dict[Node, list[Node]] = {}
    kinds: dict[Node, str] = {}
    senders: dict[str, Node] = {}
    receivers: dict[str, Node] = {}
    for place, graph in enumerate(graphs):
        for node in graph.node:
            key = (place, node.name)
            kinds[key] = node.op
            sources[key] = [(place, operand.lstrip("^").partition(":")[0]) for operand in node.input]
            if NUMBER in node.attr:
                numbers[key] = node.attr[NUMBER].i
            if node.op in _SENDS:
                senders[node.attr["tensor_name"].s] = key
            elif node.op in _RECEIVES:
                receivers[node.attr["tensor_name"].s] = key
    for key, kind in kinds.items():
        if kind == "Merge":  # what a loop's turn hands to the next one isn't an order of operators
            sources[key] = [source for source in sources[key] if kinds.get(source) != "NextIteration"]
    for name, key in receivers.items():
        sources[key] += [senders[name]] if name in senders else []
    latest: dict[Node, int] = {}
    for key in TopologicalSorter(sources).static_order():
        latest[key] = max((max(numbers.get(source, 0), latest[source]) for source in sources.get(key, ())), default=0)
    chain = sorted((number, key) for key, number in numbers.items())
    for (last_number, earlier), (_, later) in pairwise(chain):
        if latest[later] != last_number:
            raise TensorOptError(
                f"TensorFlow's graph optimizer took collective '{later[1]}' out of the chain: it doesn't wait for "
                f"'{earlier[1]}', and ranks could run them in different orders; please report this, and take "
                "collectives='mpi' meanwhile"
            )
    return len(chain)
