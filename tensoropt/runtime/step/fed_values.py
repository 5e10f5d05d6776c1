"""Emit what is fed in the layouts in which a function computes with it, whole or one micro-batch's rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...ir.graph import Tensor
from ...ir.micro_batching import MicroBatch
from ...lowering.operators import Values
from ...lowering.resharding.reshard import Resharder
from ...reschedule.layout import Layout
from ...rules.rule import OperandSharding
from ...sharding.resharding import PathFinder, resharding_of
from ...sharding.strategy import StrategyView
from .feed_shards import fed_layout, rows_of
from .functions import Feed


@dataclass(frozen=True)
class FedValues:
    """The values that a function is fed.

    Attributes:
        whole: the strategy on the graph of the full batch.
        per_micro_batch: the one on the graph of one micro-batch, if there are several.
    """

    whole: StrategyView
    per_micro_batch: StrategyView | None
    resharder: Resharder
    path_finder: PathFinder

    def at_once(self, feed: Feed, values: Values) -> Callable[[int], Values]:
        """Return a function that emits a feed as the step computes with it."""
        layouts = fed_layout(self.whole, feed), self.whole.layout(feed.tensor)
        return lambda index: resharded(feed.tensor, *layouts, values, self.resharder, self.path_finder)

    def in_micro_batches(self, feed: Feed, values: Values, first: MicroBatch) -> Callable[[int], Values]:
        """Return a function that emits a micro-batch's rows, given its index.

        If the micro-batches don't divide each rank's share evenly, the shares are gathered.
        """
        assert self.per_micro_batch is not None
        view, layout = self.per_micro_batch, fed_layout(self.whole, feed)
        if feed.is_local and first.n_shares != first.n_devices:
            replicated = Layout.replicated(layout.mesh, len(feed.tensor.shape))
            values = resharded(feed.tensor, layout, replicated, values, self.resharder, self.path_finder)
            layout = replicated
        tensor, ranks = view.graph.tensors[feed.tensor.name], self.resharder.backend.ranks

        def rows(index: int) -> Values:
            of_ranks = zip(ranks, values, strict=True)
            own = [rows_of(value, layout, tensor.shape, rank, index) for rank, value in of_ranks]
            return resharded(tensor, layout, view.layout(tensor), own, self.resharder, self.path_finder)

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
