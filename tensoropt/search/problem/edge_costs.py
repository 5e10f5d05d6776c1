"""Compute the cost arrays of reshardings between the states of two nodes; equal arrays are built once and are one object.

A resharding makes a *copy* of a *source*: of a tensor as its producer produced it, or of a shared copy. How long each is
in memory, and whether it is resharded again in the backward pass, depends on the *residual policies* of both ends. Each
state of a node has one for the source and one for the copy, beside the layout or operand sharding. They are the constants
SAVED ... HELD, documented in the tables above them. A :data:`Table` maps each pair of policies to a
:class:`ResidualCharge`, and :meth:`.ReshardingCosting.matrix` turns that into bytes and nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from ...costs.resharding_costs import ReshardingCosting, ResidualCharge
from ...ft.edge_choices import choice_states
from ...ft.problem import INFEASIBLE
from ...ir.graph import VARIABLE, Graph, Tensor
from ...rules.shardings import NO_GRADIENT, Shardings
from ...sharding.strategy import HELD, PASSED
from .node_states import Choice

# Residual policies
#
# Every resharding takes its time in the forward pass and, where a gradient comes back, in the backward pass. The columns say
# what comes on top if the backward pass reads the copy. Memory is held from the forward to the backward pass ("saved") or
# only during a part of the backward pass ("transient"). To save a copy that is the source itself, or a view of it,
# is to save the source.
#
# | source's policy | meaning for a produced tensor      | saved memory            | added time, in the backward pass      |
# |-----------------|------------------------------------|-------------------------|---------------------------------------|
# | SAVED           | saved, if the copy is it or a view | source's or copy's      | none                                  |
# | UNCHARGED       | saved, charged at another place    | copy's                  | none                                  |
# | REMATERIALIZED  | not saved: its operator is         | copy's, if communicated | the path again, if local and the copy |
# |                 | rematerialized                     |                         | isn't FIXED                           |
#
# | source's policy | meaning for a shared copy          | saved memory            | added time, in the backward pass      |
# |-----------------|------------------------------------|-------------------------|---------------------------------------|
# | SAVED           | saved                              | its own                 | none                                  |
# | UNCHARGED       | neither saved nor regathered       | each reader's own copy  | none                                  |
# | REMATERIALIZED  | regathered from a rematerialized   | none                    | the path to the shared copy again     |
# |                 | tensor                             |                         |                                       |
# | REGATHERED      | regathered from a saved tensor     | the produced shard's    | the path to the shared copy again     |
#
# A reader of a UNCHARGED shared copy must need a resharding of its own. A shared copy of a REMATERIALIZED tensor is SAVED
# or UNCHARGED only if communication makes it. A consumer's copy of a shared copy that is REMATERIALIZED or REGATHERED costs
# as one of a REMATERIALIZED tensor. The saved memory that a REMATERIALIZED source avoids is transient in the producer's
# rematerialization segment, unless the copy is PASSED.
#
# | copy's policy | meaning                                                              | if saved | if regathered       |
# |---------------|----------------------------------------------------------------------|----------|---------------------|
# | UNREAD        | the backward pass doesn't read it                                    | nothing  | nothing             |
# | READ          | a gradient reads it                                                  | as above | source's bytes; the |
# |               |                                                                      |          | path again          |
# | FIXED         | a gradient reads it through a view, or reads exchanged windows       | as above | can't be            |
# | PASSED        | no gradient reads it: read to rematerialize its consumer, and not    | as above | as READ             |
# |               | needed after that                                                    |          |                     |
# | HELD          | read to rematerialize its consumer, then by a gradient: it stays     | as above | as READ; its bytes  |
# |               | in between                                                           |          | are transient in    |
# |               |                                                                      |          | the consumer's      |
# |               |                                                                      |          | segment             |
#
# "Source's bytes" and "the produced shard's" are 0 where they are charged elsewhere (ResidualCharge.COPY_OF_SAVED,
# REGATHERED_OF_SAVED).
#
# A shared copy is the copy of the first resharding and the source of those that follow. In the Table of the first one the
# columns are numbered by the shared copy's policies as a source. The copy's policies are those of sharding.strategy.USES.
SAVED, REMATERIALIZED, UNCHARGED, REGATHERED = range(4)
Table = tuple[tuple[ResidualCharge, ...], ...]
"""The residuals that are saved: a row for each policy of the source, a column for each policy of the copy."""


@dataclass(frozen=True, eq=False)
class EdgeCosts:
    """The costs of a resharding by the states of both ends.

    Attributes:
        mem, time_ns: int64[K of source, K of target], in bytes and in nanoseconds.
        overlappable_ns: the part of the time that only updates of variables wait for; None where it is zero everywhere.
        transient: the bytes that are in memory only during a part of the backward pass, since the source is rematerialized
            and not saved; None where there are none.
        held: the bytes of regathered copies that are in memory from their consumer's rematerialization on; None where there
            are none.
    """

    mem: np.ndarray
    time_ns: np.ndarray
    overlappable_ns: np.ndarray | None = None
    transient: np.ndarray | None = None
    held: np.ndarray | None = None

    def at(self, *index: object) -> EdgeCosts:
        """Return the costs with every array indexed by ``index``."""
        arrays = (self.mem, self.time_ns, self.overlappable_ns, self.transient, self.held)
        return EdgeCosts(*(None if array is None else array[index] for array in arrays))  # type: ignore[arg-type, index]


@dataclass(frozen=True, eq=False)
class End:
    """One end of a resharding, by the states of a node.

    Attributes:
        choice: the operand sharding in each state; of a source, the produced layout as an operand sharding.
        policy: the residual policy in each state (see the table above), int[K].
        is_shared: whether this end is a copy that consumers share.
        passes: of a target, the names of the backward passes in which its gradients come back.
    """

    choice: Choice
    policy: np.ndarray
    is_shared: bool = False
    passes: frozenset[str] = frozenset()

    @cached_property
    def policies(self) -> frozenset[int]:
        return frozenset(np.unique(self.policy).tolist())

    @cached_property
    def pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the distinct pairs (operand sharding, residual policy), as two arrays of indices, and each state's pair."""
        choice, n_values = self.choice, len(self.choice.values)
        codes, index = np.unique(self.policy.astype(np.int64) * n_values + choice.index, return_inverse=True)
        return codes % n_values, codes // n_values, index.reshape(-1)

    @cached_property
    def pairs_by_policy(self) -> list[tuple[int, slice]]:
        """Return the policies that occur, each with its part of :attr:`pairs`, which are in the order of their policies."""
        _, policies, _ = self.pairs
        bounds = np.flatnonzero(np.diff(policies, prepend=-1, append=-1)).tolist()
        return [(int(policies[start]), slice(start, end)) for start, end in pairwise(bounds)]


@dataclass(frozen=True, eq=False)
class ResidualChoice:
    """A resharding whose copy is saved or regathered, as a node between its two ends.

    Attributes:
        is_regathered: whether the copy is regathered in each of the M states, bool[M].
        nothing: the costs of the node itself, zeros[M].
        to_choice: the costs between the source and this node: zero, or forbidden.
        of_choice: the costs between this node and the target.
    """

    is_regathered: np.ndarray
    nothing: np.ndarray
    to_choice: EdgeCosts
    of_choice: EdgeCosts


class ReshardingArrays:
    """The costs of the reshardings of a graph's tensors, as arrays over produced layouts and operand shardings
    (OperandSharding).

    Everything is computed once for equal shapes, layouts and residual policies, and is one object: equal layers share their
    arrays, and so do the problems that are built with the same ReshardingArrays.
    """

    def __init__(self, reshardings: ReshardingCosting, graph: Graph, gathers_parameters: bool = True) -> None:
        self.reshardings, self.graph, self.gathers_parameters = reshardings, graph, gathers_parameters
        self._alive: list[object] = []  # Objects whose id is in a key: they must not be freed.
        self._ends: dict[int, int] = {}  # by the identity of an end
        self._numbers: dict[tuple[object, ...], int] = {}
        self._equal: dict[bytes, Shardings] = {}
        self._first_equal: dict[int, Shardings] = {}  # by the identity of a sequence of values
        self._expected: set[tuple[object, ...]] = set()
        self._costs: dict[tuple[object, ...], tuple[np.ndarray, np.ndarray]] = {}
        self._returning: dict[tuple[object, ...], np.ndarray] = {}
        self._expanded: dict[tuple[object, ...], EdgeCosts] = {}
        self._choosing: dict[tuple[object, ...], ResidualChoice | None] = {}
        self._worth: dict[tuple[object, ...], np.ndarray] = {}

    def expect(self, tensor: Tensor, choices: Iterable[Choice]) -> None:
        for choice in choices:
            key = tensor.shape, tensor.item_bytes, id(self._values(choice))
            if key not in self._expected:
                self._expected.add(key)
                layouts, unreduced = choice.values.layouts, choice.values.unreduced
                is_returning = unreduced != NO_GRADIENT
                backward = self.reshardings.numbers.with_partial(layouts[is_returning], unreduced[is_returning])
                self.reshardings.expect(tensor.shape, tensor.item_bytes, np.concatenate([layouts, backward]))

    def is_overlappable(self, tensor: Tensor) -> bool:
        """Return whether only an update waits for the tensor's gradient, so that compute may run at the same time."""
        return self.reshardings.overlaps and tensor.name in self.graph.made_of_variables

    def _values(self, choice: Choice) -> Shardings:
        """Return the choice's values: the same object for all choices with equal values, so that its id can be a key."""
        values = choice.values
        if id(values) not in self._first_equal:
            self._alive.append(values)
            self._first_equal[id(values)] = self._equal.setdefault(values.codes.tobytes(), values)
        return self._first_equal[id(values)]

    def _key(self, tensor: Tensor, source: End, target: End, table: Table) -> tuple[object, ...]:
        kind = self._kind(tensor, source.is_shared)
        return tensor.shape, tensor.item_bytes, self._number(source), self._number(target), table, *kind

    def _number(self, end: End) -> int:
        """Return a number that is equal for ends of equal operand shardings and residual policies in all states."""
        number = self._ends.get(id(end))
        if number is None:
            self._alive.append(end)
            key = id(self._values(end.choice)), end.choice.index.tobytes(), end.policy.tobytes(), len(end.passes)
            number = self._ends[id(end)] = self._numbers.setdefault(key, len(self._numbers))
        return number

    def kind_of_shared(self, tensor: Tensor) -> tuple[object, ...]:
        """Return what the costs of reshardings from a tensor's shared copy depend on, beside both ends."""
        return tensor.shape, tensor.item_bytes, *self._kind(tensor, True)

    def _kind(self, tensor: Tensor, is_shared: bool) -> tuple[bool | int, ...]:
        """Return what else the costs depend on: equal for two tensors of one shape means equal costs."""
        runs = self.graph.n_runs(tensor.name), self.graph.accumulates(tensor.name)
        return self.is_overlappable(tensor), self._stays(tensor), self._is_variable(tensor, is_shared), *runs

    def _is_variable(self, tensor: Tensor, is_shared: bool) -> bool:
        """Return whether the source is a variable's own value, not a shared copy of it."""
        return self.graph.producers[tensor.name].type == VARIABLE and not is_shared

    def _stays(self, tensor: Tensor) -> bool:
        """Return whether the tensor is a parameter that must not be communicated in the forward pass."""
        return not self.gathers_parameters and self.graph.producers[tensor.name].type == VARIABLE

    def by_state(self, tensor: Tensor, source: End, target: End, table: Table, is_one_node: bool = False) -> EdgeCosts:
        """Return the costs of a resharding between the states of two nodes; int64[K] each if both ends are one node."""
        key = is_one_node, *self._key(tensor, source, target, table)
        if key not in self._expanded:
            pairs = source.pairs[2], target.pairs[2]
            costs = self._pair_costs(tensor, source, target, table)
            self._expanded[key] = costs.at(*(pairs if is_one_node else np.ix_(*pairs)))
        return self._expanded[key]

    def _pair_costs(self, tensor: Tensor, source: End, target: End, table: Table) -> EdgeCosts:
        """Return the costs between the distinct pairs (operand sharding, residual policy) of both ends."""
        (source_pairs, _, _), (target_pairs, _, _) = source.pairs, target.pairs
        mem, time_ns = np.empty((2, len(source_pairs), len(target_pairs)), np.int64)
        transient, held_bytes = np.zeros((2, *mem.shape), np.int64)
        for policy, rows in source.pairs_by_policy:
            for use, columns in target.pairs_by_policy:
                part, indices = (rows, columns), np.ix_(source_pairs[rows], target_pairs[columns])
                costs = self._matrix(tensor, source, target, table[policy][use])
                mem[part], time_ns[part] = costs[0][indices], costs[1][indices]
                if policy == REMATERIALIZED and use != PASSED:
                    saved = self._matrix(tensor, source, target, table[SAVED][use])[0][indices]
                    is_allowed = (mem[part] < INFEASIBLE) & (saved < INFEASIBLE)
                    transient[part] = np.where(is_allowed, np.maximum(saved - mem[part], 0), 0)
                if use == HELD and table[policy][use] in (ResidualCharge.REGATHERED, ResidualCharge.REGATHERED_OF_SAVED):
                    held_bytes[part] = self._matrix(tensor, source, target, ResidualCharge.COPY_OF_SAVED)[0][indices]
        if self._stays(tensor):
            is_gathered = self._matrix(tensor, source, target, ResidualCharge.LOCAL_OF_REMATERIALIZED)[1] >= INFEASIBLE
            time_ns[is_gathered[np.ix_(source_pairs, target_pairs)]] = INFEASIBLE
        overlappable_ns = self._overlappable_ns(tensor, source, target)
        overlappable_ns = None if overlappable_ns is None else overlappable_ns[np.ix_(source_pairs, target_pairs)]
        extras = [array if array.any() else None for array in (transient, held_bytes)]
        return EdgeCosts(mem, time_ns, overlappable_ns, *extras)

    def _matrix(self, tensor: Tensor, source: End, target: End, charge: ResidualCharge) -> tuple[np.ndarray, np.ndarray]:
        sources, targets = self._values(source.choice), self._values(target.choice)
        is_variable = self._is_variable(tensor, source.is_shared)
        n_passes, kind = len(target.passes), self._kind(tensor, source.is_shared)
        key = tensor.shape, tensor.item_bytes, id(sources), id(targets), charge, n_passes, *kind
        if key not in self._costs:
            mem, time_ns = self.reshardings.matrix(tensor, sources, targets, charge, is_variable, n_passes)
            if self.graph.accumulates(tensor.name):
                mem = mem + n_passes * self._accumulators_bytes(tensor, sources, targets)
            n_runs = np.where(time_ns < INFEASIBLE, self.graph.n_runs(tensor.name), 1)
            self._costs[key] = mem, time_ns * n_runs
        return self._costs[key]

    def _accumulators_bytes(self, tensor: Tensor, sources: Shardings, shardings: Shardings) -> np.ndarray:
        """Return the bytes of a pass's gradients that are accumulated at copies of the tensor, int64[sources, shardings].

        See :func:`...costs.resharding_costs.accumulator_bytes`.
        """
        is_summed = (sources.layouts[:, None] != shardings.layouts) & (shardings.unreduced != NO_GRADIENT)
        return np.where(is_summed, self.reshardings.shards(tensor, shardings), 0)

    def _overlappable_ns(self, tensor: Tensor, source: End, target: End) -> np.ndarray | None:
        if not self.is_overlappable(tensor):
            return None
        sources, targets = self._values(source.choice), self._values(target.choice)
        is_variable = self._is_variable(tensor, source.is_shared)
        key = tensor.shape, tensor.item_bytes, id(sources), id(targets), is_variable, len(target.passes)
        if key not in self._returning:
            self._returning[key] = len(target.passes) * self.reshardings.returning_ns(tensor, sources, targets, is_variable)
        return self._returning[key]

    def worth_regathering(self, tensor: Tensor, source: Choice, shared: Choice) -> np.ndarray:
        """Return the indices of the copies that are larger than some produced shard from which communication makes them."""
        sources, copies = self._values(source), self._values(shared)
        key = tensor.shape, tensor.item_bytes, id(sources), id(copies)
        if key not in self._worth:
            shards, copy_bytes = (self.reshardings.shards(tensor, values)[None] for values in (sources, copies))
            is_larger = (copy_bytes > shards.T) & ~self.reshardings.are_local(sources, copies)
            self._worth[key] = np.flatnonzero(is_larger.any(axis=0))
        return self._worth[key]

    def residual_choice(
        self, tensor: Tensor, source: End, target: End, tables: tuple[Table, Table]
    ) -> ResidualChoice | None:
        """Return the choice between saving and regathering a copy, as a node; None where regathering can't pay.

        Args:
            tables: the Table of a copy that is saved, and that of one that is regathered.
        """
        key = self._key(tensor, source, target, sum(tables, start=()))
        if key not in self._choosing:
            saved, regathered = (self._pair_costs(tensor, source, target, table) for table in tables)
            self._choosing[key] = _residual_choice(saved, regathered, source, target)
        return self._choosing[key]


def _residual_choice(saved: EdgeCosts, regathered: EdgeCosts, source: End, target: End) -> ResidualChoice | None:
    """Return the choice between saving and regathering a copy, as a node; None where regathering can't pay."""
    both_costs = saved, regathered
    transients = (_sum([costs.transient for costs in both_costs]), _sum([costs.held for costs in both_costs]))
    first, class_of, classes, choice = choice_states(
        [costs.mem for costs in both_costs],
        [costs.time_ns for costs in both_costs],
        [array for array in (saved.overlappable_ns, *transients) if array is not None],
    )
    if not choice.any():
        return None
    (*_, source_rows), (*_, target_rows) = source.pairs, target.pairs
    is_regathered, member = choice == 1, first[classes]

    def chosen(if_saved: np.ndarray, if_regathered: np.ndarray) -> np.ndarray:
        """Return, for each (class, choice) pair, the row of its choice by the target's states."""
        rows = np.where(is_regathered[:, None], if_regathered[member], if_saved[member])
        return rows[:, target_rows]

    def chosen_if_any(if_saved: np.ndarray | None, if_regathered: np.ndarray | None) -> np.ndarray | None:
        if if_saved is None and if_regathered is None:
            return None
        zeros = np.zeros_like(saved.mem)
        rows = chosen(*(zeros if array is None else array for array in (if_saved, if_regathered)))
        return rows if rows.any() else None

    choice_costs = EdgeCosts(
        chosen(saved.mem, regathered.mem),
        chosen(saved.time_ns, regathered.time_ns),
        None if saved.overlappable_ns is None else saved.overlappable_ns[member][:, target_rows],
        chosen_if_any(saved.transient, regathered.transient),
        chosen_if_any(saved.held, regathered.held),
    )
    forbidden = np.where(class_of[source_rows][:, None] == classes[None, :], 0, INFEASIBLE)
    costs_to_choice = EdgeCosts(np.zeros_like(forbidden), forbidden)
    return ResidualChoice(is_regathered, np.zeros(len(choice), np.int64), costs_to_choice, choice_costs)


def _sum(arrays: Iterable[np.ndarray | None]) -> np.ndarray | None:
    """Return the sum of the arrays that are there; None if none is."""
    present = [array for array in arrays if array is not None]
    return sum(present[1:], start=present[0]) if present else None
