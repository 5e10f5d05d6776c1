"""Emit what is fed in the layouts in which a function computes with it, whole or one micro-batch's rows at a time."""

from __future__ import annotations

from collections.abc import Callable

from ...ir.graph import Tensor
from ...ir.micro_batching import MicroBatch
from ...lowering.operators import Values
from ...lowering.resharding.reshard import Resharder
from ...reschedule.layout import Layout
from ...rules.rule import OperandSharding
from ...sharding.resharding import PathFinder, resharding_of
from .feed_shards import comes_in_micro_batches, fed_layout, rows_of
from .functions import Feed
from .parts import StageView


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


def as_given(values: Values, micro_batch: int) -> Values:
    """Return values that are there, whatever the micro-batch."""
    return values


def resharded(
    tensor: Tensor, source: Layout, target: Layout, values: Values, resharder: Resharder, path_finder: PathFinder
) -> Values:
    """Reshard a tensor, or its part of a micro-batch, which no gradient comes back to."""
    if source == target:
        return values
    resharding = resharding_of(tensor, source, OperandSharding(target, None))
    return resharder.reshard(resharding, path_finder.paths(resharding), values, tensor.name)
