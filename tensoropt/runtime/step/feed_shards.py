"""Cut fed values into the shards of ranks and the rows of micro-batches, and emit them as a function computes with them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from ...ir.graph import Tensor
from ...ir.micro_batching import MicroBatch
from ...lowering.localise import opaque, uniform_shape
from ...lowering.operators import Values
from ...lowering.resharding.reshard import Resharder
from ...reschedule.layout import Layout, Shape
from ...rules.rule import OperandSharding
from ...sharding.local_shapes import shard_slices
from ...sharding.resharding import PathFinder, resharding_of
from ...sharding.strategy import StrategyView
from .functions import Argument, FedSpec, Feed
from .parts import StageView


def fed_layout(view: StrategyView, feed: Feed) -> Layout:
    """Return a feed's layout: the tensor's produced layout, or the batch split over all ranks in order."""
    if not feed.is_local:
        return view.layout(feed.tensor)
    mesh = view.strategy.mesh
    rank = len(feed.tensor.shape)
    return Layout(mesh, (mesh.axes, *((),) * (rank - 1)))


def rank_shard(
    value: np.ndarray, layout: Layout, shape: tuple[int, ...], rank: int, micro_batches: tuple[MicroBatch, ...] = ()
) -> np.ndarray:
    """Return a rank's shard of a global value, or its shards of all micro-batches, one after the other.

    In a partial layout the ranks at coordinate 0 of the partial axes hold the value, and the others hold zeros.
    """
    if micro_batches:
        slices = (micro_batch.of(value, 0) for micro_batch in micro_batches)
        return np.concatenate([rank_shard(part, layout, part.shape, rank) for part in slices])
    if layout.is_replicated:
        return value
    shard = value[shard_slices(layout, shape, rank)]
    if layout.partial and layout.mesh.index_along(layout.partial, rank):
        return np.zeros_like(shard)
    return shard


def comes_in_micro_batches(feed: Feed, micro_batches: tuple[MicroBatch, ...]) -> bool:
    """Return whether a feed is cut into these micro-batches."""
    return bool(micro_batches) and micro_batches[0].makes(feed.tensor)


def rows_of(value: tf.Tensor, layout: Layout, shape: Shape, rank: int, index: int) -> tf.Tensor:
    """Return a rank's shard of one micro-batch's tensor, whose global shape is ``shape``.

    ``value`` holds the rank's shards of all micro-batches, one after the other.
    """
    extents = layout.local_shape(shape, rank)
    begin = [index * extents[0], *(0 for _ in extents[1:])]
    rows = tf.slice(value, opaque(begin, tf.int32), opaque(list(extents), tf.int32))
    rows.set_shape(uniform_shape(layout, shape))
    return rows


def fed_shape(layout: Layout, shape: Shape, micro_batches: tuple[MicroBatch, ...]) -> tf.TensorShape:
    """Return the shape of a feed's argument. The shards of micro-batches are concatenated along the first dimension."""
    if not micro_batches:
        return uniform_shape(layout, shape)
    n_rows, *extents = uniform_shape(layout, (shape[0] // len(micro_batches), *shape[1:]))
    return tf.TensorShape([None if n_rows is None else n_rows * len(micro_batches), *extents])


def shard_of(argument: Argument, value: np.ndarray | tf.Tensor) -> np.ndarray | tf.Tensor:
    """Return what a rank is given of a value that is fed. A tensor that needs no cut is taken without a copy."""
    if argument.is_as_fed and isinstance(value, tf.Tensor):
        return value
    shard = np.asarray(value)
    if not argument.is_as_fed:
        shard = rank_shard(shard, argument.layout, argument.feed.tensor.shape, argument.rank, argument.micro_batches)
    return shard if shard.flags.c_contiguous else np.ascontiguousarray(shard).reshape(shard.shape)


def argument_of(
    view: StrategyView, feed: Feed, number: int, stage: int, rank: int, micro_batches: tuple[MicroBatch, ...], is_ahead: bool
) -> Argument:
    """Return what a rank of a stage is given of a feed; shares of ranks are cut into micro-batches in the function."""
    layout, tensor = fed_layout(view, feed), feed.tensor
    cut_into = () if is_ahead or feed.is_local or not comes_in_micro_batches(feed, micro_batches) else micro_batches
    spec = FedSpec.of(tf.TensorSpec(fed_shape(layout, tensor.shape, cut_into), tensor.dtype))
    is_as_fed = feed.is_local or (layout.is_replicated and not cut_into)
    return Argument(feed, number, stage, rank, is_ahead, layout, cut_into, is_as_fed, spec)


def fed_values(
    feed: Feed, values: Values, views: StageView, micro_batches: tuple[MicroBatch, ...], resharder: Resharder,
    path_finder: PathFinder,
) -> Callable[[int], Values]:  # fmt: skip
    """Return a function that emits a feed as the step computes with it, or a micro-batch's rows of it, given its index.

    If the micro-batches don't divide each rank's share evenly, the shares are gathered.
    """
    layout = fed_layout(views.whole, feed)
    if not comes_in_micro_batches(feed, micro_batches):
        layouts = layout, views.whole.layout(feed.tensor)
        return lambda index: resharded(feed.tensor, *layouts, values, resharder, path_finder)
    if feed.is_local and micro_batches[0].n_shares != micro_batches[0].n_devices:
        replicated = Layout.replicated(layout.mesh, len(feed.tensor.shape))
        values = resharded(feed.tensor, layout, replicated, values, resharder, path_finder)
        layout = replicated
    view, ranks = views.per_micro_batch, resharder.backend.ranks
    tensor = view.graph.tensors[feed.tensor.name]

    def rows(index: int) -> Values:
        pairs = zip(ranks, values, strict=True)
        shards = [rows_of(value, layout, tensor.shape, rank, index) for rank, value in pairs]
        return resharded(tensor, layout, view.layout(tensor), shards, resharder, path_finder)

    return rows


def fed_to_all(values: Values, rows: Callable[[int], Values], micro_batch: int) -> Values:
    """Return a batch as it is given, or emit a micro-batch's rows of it."""
    return values if micro_batch < 0 else rows(micro_batch)


def resharded(
    tensor: Tensor, source: Layout, target: Layout, values: Values, resharder: Resharder, path_finder: PathFinder
) -> Values:
    """Reshard a tensor, or its part of a micro-batch, which no gradient comes back to."""
    if source == target:
        return values
    resharding = resharding_of(tensor, source, OperandSharding(target, None))
    return resharder.reshard(resharding, path_finder.paths(resharding), values, tensor.name)
