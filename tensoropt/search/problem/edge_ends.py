"""Describe the two ends of a tensor's resharding: its producer and a consumer, each by the states of its node."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...ir.graph import Tensor
from ...reschedule.layout import Layout, is_view
from ...rules.rule import Demand
from ...sharding.consumers import as_copy
from .edge_costs import FIXED, REMATERIALIZED, UNREAD, End
from .node_states import Choice


@dataclass(frozen=True, eq=False)
class ConsumerEnd:
    """A consumer in the search: its node and, by the node's state, its operand sharding and its copy's residual policy."""

    node: int
    end: End

    @property
    def demands(self) -> Choice[Demand]:
        return self.end.choice

    @property
    def reads(self) -> bool:
        """Return whether the backward pass reads the consumer's copy in some state."""
        return bool((self.end.way != UNREAD).any())

    @property
    def may_read_or_not(self) -> bool:
        return self.reads and bool((self.end.way == UNREAD).any())

    @property
    def may_be_remade(self) -> bool:
        """Return whether the consumer's copy may be regathered in every state in which it is read."""
        return not (self.end.way == FIXED).any()


@dataclass(frozen=True, eq=False)
class Made:
    """A tensor as produced: its layout and residual policy, by the state of its producer's node."""

    node: int
    tensor: Tensor
    end: End

    @property
    def left(self) -> Choice[Demand]:
        return self.end.choice

    @property
    def may_be_regathered(self) -> bool:
        return bool((self.end.way == REMATERIALIZED).any())


def has_gradient(demands: Choice[Demand]) -> bool:
    return any(demand.varying is not None for demand in demands.values)


def may_be_unread(shared: Choice[Demand], readers: list[ConsumerEnd]) -> np.ndarray:
    """Return the indices of the shared copies that possibly nobody reads: each reader has its own copy in some state."""

    def may_have_its_own(end: ConsumerEnd, layout: Layout) -> bool:
        return any(layout != demand.layout and not is_view(layout, demand.layout) for demand in end.demands.values)

    places = [i for i, d in enumerate(shared.values) if all(may_have_its_own(end, d.layout) for end in readers)]
    return np.array(places, np.intp)


def as_copies(ends: list[ConsumerEnd]) -> list[list[Demand]]:
    """Return, for each consumer, its distinct operand shardings as those of a copy that all can share, in their order."""
    with_gradient = any(has_gradient(end.demands) for end in ends)
    return [[as_copy(demand, with_gradient) for demand in end.demands.values] for end in ends]
