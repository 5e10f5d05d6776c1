"""Describe the two ends of a tensor's resharding: its producer and a consumer, each by the states of its node."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...ir.graph import Tensor
from ...reschedule.layout import Layout, is_view
from ...rules.rule import OperandSharding
from ...sharding.consumers import as_copy
from .edge_costs import FIXED, REMATERIALIZED, UNREAD, End
from .node_states import Choice


@dataclass(frozen=True, eq=False)
class ConsumerEnd:
    """A consumer in the search: its node and, by the node's state, its operand sharding and its copy's residual policy."""

    node: int
    end: End

    @property
    def shardings(self) -> Choice[OperandSharding]:
        return self.end.choice

    @property
    def reads(self) -> bool:
        """Return whether the backward pass reads the consumer's copy in some state."""
        return bool((self.end.policy != UNREAD).any())

    @property
    def may_read_or_not(self) -> bool:
        return self.reads and bool((self.end.policy == UNREAD).any())

    @property
    def can_be_regathered(self) -> bool:
        """Return whether the consumer's copy may be regathered in every state in which it is read."""
        return not (self.end.policy == FIXED).any()


@dataclass(frozen=True, eq=False)
class ProducedTensor:
    """A tensor as produced: its layout and residual policy, by the state of its producer's node."""

    node: int
    tensor: Tensor
    end: End

    @property
    def produced(self) -> Choice[OperandSharding]:
        return self.end.choice

    @property
    def may_be_rematerialized(self) -> bool:
        return bool((self.end.policy == REMATERIALIZED).any())


def has_gradient(shardings: Choice[OperandSharding]) -> bool:
    return any(sharding.unreduced is not None for sharding in shardings.values)


def may_be_unread(shared: Choice[OperandSharding], readers: list[ConsumerEnd]) -> np.ndarray:
    """Return the indices of the shared copies that possibly nobody reads: each reader has its own copy in some state."""

    def may_have_its_own(end: ConsumerEnd, layout: Layout) -> bool:
        return any(layout != sharding.layout and not is_view(layout, sharding.layout) for sharding in end.shardings.values)

    indices = [i for i, d in enumerate(shared.values) if all(may_have_its_own(end, d.layout) for end in readers)]
    return np.array(indices, np.intp)


def as_copies(ends: list[ConsumerEnd]) -> list[list[OperandSharding]]:
    """Return, for each consumer, its distinct operand shardings as those of a copy that all can share, in their order."""
    with_gradient = any(has_gradient(end.shardings) for end in ends)
    return [[as_copy(sharding, with_gradient) for sharding in end.shardings.values] for end in ends]
