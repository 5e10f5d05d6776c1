"""Describe the two ends of a tensor's resharding: its producer and a consumer, each by the states of its node."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...ir.graph import Tensor
from ...rules.shardings import Shardings
from .edge_costs import FIXED, REMATERIALIZED, UNREAD, End
from .node_states import Choice


@dataclass(frozen=True, eq=False)
class ConsumerEnd:
    """A consumer in the search: its node and, by the node's state, its operand sharding and its copy's residual policy."""

    node: int
    end: End

    @property
    def shardings(self) -> Choice:
        return self.end.choice

    @property
    def reads(self) -> bool:
        """Return whether the backward pass reads the consumer's copy in some state."""
        return self.end.policies != {UNREAD}

    @property
    def may_read_or_not(self) -> bool:
        return self.reads and UNREAD in self.end.policies

    @property
    def can_be_regathered(self) -> bool:
        """Return whether the consumer's copy may be regathered in every state in which it is read."""
        return FIXED not in self.end.policies


@dataclass(frozen=True, eq=False)
class ProducedTensor:
    """A tensor as produced: its layout and residual policy, by the state of its producer's node."""

    node: int
    tensor: Tensor
    end: End

    @property
    def produced(self) -> Choice:
        return self.end.choice

    @property
    def may_be_rematerialized(self) -> bool:
        return REMATERIALIZED in self.end.policies


def may_be_unread(shared: Choice, readers: list[ConsumerEnd]) -> np.ndarray:
    """Return the indices of the shared copies that possibly nobody reads: each reader has its own copy in some state."""
    numbers, layouts = shared.values.numbers, shared.values.layouts
    is_unread = np.ones(len(layouts), bool)
    for end in readers:
        reader_layouts = end.shardings.values.layouts
        is_unread &= ((layouts[:, None] != reader_layouts) & ~numbers.are_views(layouts, reader_layouts)).any(axis=1)
    return np.flatnonzero(is_unread)


def have_gradient(ends: list[ConsumerEnd]) -> bool:
    """Return whether a gradient comes back from some consumer."""
    return any(end.shardings.values.has_gradient for end in ends)


def as_copies(ends: list[ConsumerEnd]) -> list[Shardings]:
    """Return, for each consumer, its distinct operand shardings as those of a copy that all can share, in their order."""
    has_gradient = have_gradient(ends)
    return [end.shardings.values.as_copies(has_gradient) for end in ends]
