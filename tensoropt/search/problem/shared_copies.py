"""Describe the two ends of a tensor's resharding, its producer and a consumer, and work out the copies that consumers share.

The latter once for tensors that are alike, as those of equal layers: if they have one shape, and both ends of their
reshardings are the same objects. What each resharding saves for the backward pass is a :data:`.Table`, by the residual
policies of both ends.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from ...costs.resharding_costs import ResidualCharge
from ...ir.graph import Tensor
from ...rules.shardings import Shardings
from ...sharding.strategy import FIXED, HELD, PASSED, READ, UNREAD
from .edge_costs import REGATHERED, REMATERIALIZED, SAVED, UNCHARGED, EdgeCosts, End, ReshardingArrays, Table
from .node_states import Choice


@dataclass(frozen=True, eq=False)
class ConsumerEnd:
    """A consumer in the search: its node and, by the node's state, its operand sharding and its copy's residual policy."""

    node: int
    end: End

    @property
    def reads(self) -> bool:
        """Return whether the backward pass reads the consumer's copy in some state."""
        return self.end.policies != {UNREAD}


@dataclass(frozen=True, eq=False)
class ProducedTensor:
    """A tensor as produced: its layout and residual policy, by the state of its producer's node."""

    node: int
    tensor: Tensor
    end: End


def may_be_unread(shared: Choice, readers: list[ConsumerEnd]) -> np.ndarray:
    """Return the indices of the shared copies that possibly nobody reads: each reader has its own copy in some state."""
    numbers, layouts = shared.values.numbers, shared.values.layouts
    is_unread = np.ones(len(layouts), bool)
    for reader in readers:
        reader_layouts = reader.end.choice.values.layouts
        is_unread &= ((layouts[:, None] != reader_layouts) & ~numbers.are_views(layouts, reader_layouts)).any(axis=1)
    return np.flatnonzero(is_unread)


def have_gradient(consumers: list[ConsumerEnd]) -> bool:
    """Return whether a gradient comes back from some consumer."""
    return any(consumer.end.choice.values.has_gradient for consumer in consumers)


def passes_of(consumers: list[ConsumerEnd]) -> frozenset[str]:
    """Return the names of the backward passes in which a gradient comes back from some consumer."""
    return frozenset().union(*(consumer.end.passes for consumer in consumers))


def as_copies(consumers: list[ConsumerEnd]) -> list[Shardings]:
    """Return, for each consumer, its distinct operand shardings as those of a copy that all can share, in their order."""
    has_gradient = have_gradient(consumers)
    return [consumer.end.choice.values.as_copies(has_gradient) for consumer in consumers]


@dataclass(frozen=True, eq=False)
class SharedStates:
    """The states of a shared copy's node.

    Attributes:
        copy: the copy, by state.
        shardings: the operand sharding in each state.
        is_unread: whether nobody may read the copy, bool[K].
        is_regathered: whether the copy is regathered, bool[K].
        can_be_regathered: whether it may be.
        nothing: the costs of the node itself, zeros[K].
        to_copy, of_copy: what the resharding to the copy saves, and what those from it do.
    """

    copy: End
    shardings: Shardings
    is_unread: np.ndarray
    is_regathered: np.ndarray
    can_be_regathered: bool
    nothing: np.ndarray
    to_copy: Table
    of_copy: Table


@dataclass(frozen=True, eq=False)
class CopyWithin:
    """The copy that several consumers share which are one node.

    Attributes:
        end: the copy, by the node's state.
        shardings: its operand sharding in each state.
        costs: the costs of the consumers' reshardings from it, each with the states in which they are made, bool[K].
    """

    end: End
    shardings: Shardings
    costs: list[tuple[EdgeCosts, np.ndarray]]


class SharedCopies:
    """The shared copies of one problem's tensors."""

    def __init__(self, arrays: ReshardingArrays) -> None:
        self.arrays = arrays
        self._copies: dict[tuple[int, ...], Choice] = {}  # what has the identities of keys is kept alive by its owner
        self._unread: dict[tuple[int, ...], np.ndarray] = {}
        self._states: dict[tuple[object, ...], SharedStates] = {}
        self._within: dict[tuple[object, ...], CopyWithin] = {}

    def choice(self, layout: Choice, consumers: list[ConsumerEnd]) -> Choice:
        """Return the operand shardings that a tensor's shared copy may have.

        They are the produced layouts (sums completed), and all that more than one consumer asks for.
        """
        key = id(layout), *(id(consumer.end.choice) for consumer in consumers)
        if key not in self._copies:
            numbers, values = layout.values.numbers, layout.values
            n_consumers = Counter(copy for copies in as_copies(consumers) for copy in dict.fromkeys(copies.codes.tolist()))
            layouts = numbers.with_partial(values.layouts, np.zeros_like(values.layouts))
            as_produced = Shardings(numbers, layouts, values.unreduced).codes.tolist()
            codes = dict.fromkeys([*as_produced, *(copy for copy, times in n_consumers.items() if times > 1)])
            shared = Shardings.of_codes(numbers, np.array(list(codes), np.int64))
            self._copies[key] = Choice(shared, np.arange(len(shared)))
        return self._copies[key]

    def states(
        self, value: ProducedTensor, consumers: list[ConsumerEnd], shared: Choice, charge: ResidualCharge, may_regather: bool
    ) -> SharedStates:
        """Return the states of a shared copy's node, up to four for each operand sharding.

        In state SAVED the copy is saved. In REGATHERED, offered where it can pay, it is regathered from a saved tensor. In
        REMATERIALIZED it is regathered from a rematerialized tensor. In UNCHARGED it is neither saved nor regathered, and
        nobody may read it.

        If a single consumer reads, its operand sharding tells whether it reads the shared copy or its own. The copy of a
        rematerialized tensor is rematerialized with it, unless communication makes it. That state differs from REGATHERED,
        since what consumers make of such a copy stays in memory as long as the rematerialization segment, and what they
        make of a copy that is regathered otherwise is freed at once.

        Args:
            shared: the operand shardings that the copy may have.
            charge: what a read copy of the tensor saves.
            may_regather: whether copies of the tensor may be regathered.
        """
        tensor_key = value.tensor.shape, value.tensor.item_bytes, charge, may_regather
        key = *tensor_key, id(value.end), id(shared), *(id(consumer.end) for consumer in consumers)
        if key not in self._states:
            self._states[key] = self._make_states(value, consumers, shared, charge, may_regather)
        return self._states[key]

    def _make_states(
        self, value: ProducedTensor, consumers: list[ConsumerEnd], shared: Choice, charge: ResidualCharge, may_regather: bool
    ) -> SharedStates:
        tensor, readers = value.tensor, [consumer for consumer in consumers if consumer.reads]
        may_be_rematerialized = REMATERIALIZED in value.end.policies
        varies = may_be_rematerialized or any(UNREAD in reader.end.policies for reader in readers)
        copy_charge = consumer_charge = charge if readers else ResidualCharge.NOTHING
        if len(readers) == 1 and charge == ResidualCharge.COPY and not varies:
            copy_charge = ResidualCharge.NOTHING
        elif readers:
            consumer_charge = ResidualCharge.COPY_OF_SAVED
        can_be_regathered = bool(may_regather and readers and all(FIXED not in reader.end.policies for reader in readers))
        no_rows, all_rows = np.zeros(0, np.intp), np.arange(len(shared.values))
        regathered = self.arrays.worth_regathering(tensor, value.end.choice, shared) if can_be_regathered else no_rows
        remat_rows = all_rows if readers and may_be_rematerialized else no_rows
        is_always_read = copy_charge == ResidualCharge.NOTHING and not (readers and varies)
        unread = no_rows if is_always_read else all_rows if readers and varies else self._may_be_unread(shared, readers)
        rows_by_policy = {SAVED: all_rows, REGATHERED: regathered, REMATERIALIZED: remat_rows, UNCHARGED: unread}
        index = np.concatenate(list(rows_by_policy.values()))
        policy = np.repeat(list(rows_by_policy), [len(indices) for indices in rows_by_policy.values()])
        return SharedStates(
            End(Choice(shared.values, index), policy, True, passes_of(consumers)),
            shared.values.at(index),
            policy == UNCHARGED,
            np.isin(policy, (REGATHERED, REMATERIALIZED)),
            can_be_regathered,
            np.zeros(len(index), np.int64),
            to_shared(copy_charge, charge, can_be_regathered),
            of_shared(consumer_charge),
        )

    def _may_be_unread(self, shared: Choice, readers: list[ConsumerEnd]) -> np.ndarray:
        """Return what :func:`may_be_unread` does, computed once for the same choices."""
        key = id(shared), *(id(reader.end.choice) for reader in readers)
        if key not in self._unread:
            self._unread[key] = may_be_unread(shared, readers)
        return self._unread[key]

    def within(self, tensor: Tensor, consumers: list[ConsumerEnd]) -> CopyWithin:
        """Return the copy that a tensor's consumers share which are one node.

        It is the copy that one of them asks for; in each state the one for which resharding takes the least time.
        """
        key = *self.arrays.kind_of_shared(tensor), *(id(consumer.end) for consumer in consumers)
        if key not in self._within:
            self._within[key] = self._fastest(tensor, consumers)
        return self._within[key]

    def _fastest(self, tensor: Tensor, consumers: list[ConsumerEnd]) -> CopyWithin:
        n_states = len(consumers[0].end.choice.index)
        options = []
        for consumer, copy in zip(consumers, as_copies(consumers), strict=True):
            choice = Choice(copy, consumer.end.choice.index)
            self.arrays.expect(tensor, [choice])
            source = End(choice, np.full(n_states, UNCHARGED), is_shared=True)
            table = direct(ResidualCharge.COPY_OF_SAVED)
            use_costs = [self.arrays.by_state(tensor, source, target.end, table, is_one_node=True) for target in consumers]
            options.append((choice, use_costs))
        best = np.argmin([np.sum([cost.time_ns for cost in use_costs], axis=0) for _, use_costs in options], axis=0)
        codes = np.stack([choice.values.codes[choice.index] for choice, _ in options])[best, np.arange(n_states)]
        shardings = Shardings.of_codes(options[0][0].values.numbers, codes)
        shared = Choice.of(shardings)
        # Regathered only where all consumers that read the copy do so without a copy of their own.
        policies = np.stack([consumer.end.policy for consumer in consumers])
        layouts = [consumer.end.choice.values.layouts[consumer.end.choice.index] for consumer in consumers]
        has_own_copy = shardings.layouts != np.stack(layouts)
        is_fixed = ((policies != UNREAD) & ((policies == FIXED) | has_own_copy)).any(axis=0)
        policy = np.full(n_states, UNREAD)
        for choice_policy in (PASSED, READ, HELD):
            policy[(policies == choice_policy).any(axis=0)] = choice_policy
        policy[is_fixed] = FIXED
        costs = [(cost, best == k) for k, (_, use_costs) in enumerate(options) for cost in use_costs]
        return CopyWithin(End(shared, policy, passes=passes_of(consumers)), shardings, costs)


_NOTHING = ResidualCharge.NOTHING
_OF_REMATERIALIZED = (
    _NOTHING,
    ResidualCharge.FROM_REMATERIALIZED,
    ResidualCharge.VIEW_OF_REMATERIALIZED,
    ResidualCharge.FROM_REMATERIALIZED,
    ResidualCharge.FROM_REMATERIALIZED,
)


def direct(charge: ResidualCharge) -> Table:
    """Return the Table of a single consumer's copy of a produced tensor; rows SAVED, REMATERIALIZED, UNCHARGED."""
    return (_NOTHING, *(charge,) * 4), _OF_REMATERIALIZED, (_NOTHING, *(ResidualCharge.COPY_OF_SAVED,) * 4)


def direct_regathered(charge: ResidualCharge) -> Table:
    """Return the Table of a single consumer's copy that is regathered; where it can't be (FIXED), it is saved."""
    of_saved = ResidualCharge.REGATHERED_OF_SAVED
    policies = ResidualCharge.REGATHERED if charge == ResidualCharge.COPY else of_saved, of_saved, of_saved
    return tuple(
        (unread, regathered, fixed_charge, regathered, regathered)
        for (unread, _, fixed_charge, *_), regathered in zip(direct(charge), policies, strict=True)
    )


def to_shared(copy_charge: ResidualCharge, charge: ResidualCharge, can_be_regathered: bool) -> Table:
    """Return the Table of a shared copy of a produced tensor.

    Rows are the tensor's policies SAVED and REMATERIALIZED; columns the shared copy's policies SAVED, REMATERIALIZED,
    UNCHARGED (unread) and REGATHERED.
    """
    regathered = ResidualCharge.REGATHERED if charge == ResidualCharge.COPY else ResidualCharge.REGATHERED_OF_SAVED
    return (
        (copy_charge, ResidualCharge.FORBIDDEN, _NOTHING, regathered),
        (
            _NOTHING if copy_charge == _NOTHING else ResidualCharge.COPY_OF_REMATERIALIZED,
            ResidualCharge.REGATHERED_OF_SAVED if can_be_regathered else ResidualCharge.LOCAL_OF_REMATERIALIZED,
            _NOTHING if copy_charge == _NOTHING else ResidualCharge.UNREAD_OF_REMATERIALIZED,
            ResidualCharge.FORBIDDEN,
        ),
    )


def of_shared(consumer_charge: ResidualCharge) -> Table:
    """Return the Table of a consumer's copy of a shared copy; rows are the shared copy's policies, in the same order."""
    unread_row = _NOTHING, *(ResidualCharge.FROM_SHARED_UNREAD,) * 4
    return (_NOTHING, *(consumer_charge,) * 4), _OF_REMATERIALIZED, unread_row, _OF_REMATERIALIZED
