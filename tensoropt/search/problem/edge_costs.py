"""The arrays of a Problem's costs: of reshardings between the states of nodes, each built once and shared by identity.

What a resharding keeps for the backward pass depends on both its ends: on *how the source is there* then and on *how the
copy is read*. So each end has a way by state beside its layout or demand, and a table says what the pairs of ways come to.

| source | |
|---|---|
| ``LEFT`` | it is kept if the copy needs it |
| ``REGATHERED`` | it isn't kept but computed again |
| ``PAID`` | it is kept, and paid for elsewhere |
| ``REMADE`` | a shared copy that is made again of a source that is kept |

| copy | |
|---|---|
| ``UNREAD`` | the backward pass doesn't read it |
| ``READ`` | it does, and the copy may be made again |
| ``FIXED`` | it does, by way of a view or of exchanged windows: such a copy isn't made again by itself |
| ``HELD`` | as ``READ``, and before that to compute the operator that takes it again: it is there from then on |
| ``PASSED`` | no gradient does; it is read to compute the operator that takes it again, and not needed longer |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...costs.resharding_costs import Keeping, ReshardingCosting, accumulator_bytes
from ...ft.choices import choice_states
from ...ft.problem import INFEASIBLE
from ...ir.graph import VARIABLE, Graph, Tensor
from ...rules.rule import Demand
from .node_states import Choice

LEFT, REGATHERED, PAID, REMADE = range(4)
UNREAD, READ, FIXED, PASSED, HELD = range(5)
Table = tuple[tuple[Keeping, ...], ...]
"""By the way of the source, and by that of the copy."""


@dataclass(frozen=True, eq=False)
class Costs:
    """Attributes:
    mem, time_ns: int64[K of source, K of target].
    trailing_ns: of the time what only updates of variables wait for; None where that is nothing.
    transient: what is there for a while in the backward pass, where the source is computed again; None where nothing is.
    held: the copies that are made again and are there while what takes them is computed again; None where none are.
    """

    mem: np.ndarray
    time_ns: np.ndarray
    trailing_ns: np.ndarray | None = None
    transient: np.ndarray | None = None
    held: np.ndarray | None = None

    def at(self, *index: object) -> Costs:
        """The same at some places of each array."""
        arrays = (self.mem, self.time_ns, self.trailing_ns, self.transient, self.held)
        return Costs(*(None if array is None else array[index] for array in arrays))  # type: ignore[arg-type, index]


@dataclass(frozen=True, eq=False)
class End:
    """One end of a resharding by the states of a node: what it asks or leaves, and the way (see above), int[K].

    Attributes:
        is_shared: whether it is a copy that consumers share.
    """

    choice: Choice[Demand]
    way: np.ndarray
    is_shared: bool = False

    @cached_property
    def key(self) -> tuple[object, ...]:
        return id(self.choice.values), self.choice.place.tobytes(), self.way.tobytes()

    @cached_property
    def pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The distinct (place, way) that occur, as two arrays, and for each state its place among them."""
        choice, n_values = self.choice, len(self.choice.values)
        found, place = np.unique(self.way.astype(np.int64) * n_values + choice.place, return_inverse=True)
        return found % n_values, found // n_values, place.reshape(-1)


@dataclass(frozen=True, eq=False)
class Choosing:
    """A resharding with a choice, as a node between its ends.

    Attributes:
        is_remade: whether a state makes the copy again, bool[M].
        nothing: the costs of the node itself, zeros[M].
        to_choice: costs between source and node: nothing, or forbidden.
        of_choice: costs between node and target.
    """

    is_remade: np.ndarray
    nothing: np.ndarray
    to_choice: Costs
    of_choice: Costs


class ReshardingArrays:
    """What reshardings of a graph's tensors cost, as arrays over the layouts in which they are left and the demands."""

    def __init__(self, reshardings: ReshardingCosting, graph: Graph, gathers_parameters: bool = True) -> None:
        self.reshardings, self.graph, self.gathers_parameters = reshardings, graph, gathers_parameters
        self._alive: list[object] = []  # what keys name by its id
        self._expected: set[tuple[object, ...]] = set()
        self._costs: dict[tuple[object, ...], tuple[np.ndarray, np.ndarray]] = {}
        self._returning: dict[tuple[object, ...], np.ndarray] = {}
        self._expanded: dict[tuple[object, ...], Costs] = {}
        self._choosing: dict[tuple[object, ...], Choosing | None] = {}

    def expect(self, tensor: Tensor, choices: Iterable[Choice[Demand]]) -> None:
        for choice in choices:
            key = tensor.shape, tensor.item_bytes, id(choice)
            if key not in self._expected:
                self._expected.add(key)
                self._alive.append(choice)
                forward = [demand.layout for demand in choice.values]
                backward = [d.layout.with_partial(d.varying) for d in choice.values if d.varying is not None]
                self.reshardings.expect(tensor.shape, tensor.item_bytes, [*forward, *backward])

    def trails(self, tensor: Tensor) -> bool:
        """Whether a tensor's gradient keeps nobody but an update waiting, and compute may run meanwhile.

        Accumulated gradients go back after the last slice of the batch, when little compute is left.
        """
        return self.reshardings.overlaps and self.graph.n_slices == 1 and tensor.name in self.graph.made_of_variables

    def _key(self, tensor: Tensor, source: End, target: End, table: Table) -> tuple[object, ...]:
        self._alive += [source.choice.values, target.choice.values]
        ends = source.key, target.key
        kind = self._kind(tensor, source)
        return tensor.shape, tensor.item_bytes, *ends, table, *kind

    def _kind(self, tensor: Tensor, source: End) -> tuple[bool | int, ...]:
        """What reshardings of tensors of one shape cost is equal where this is."""
        in_slices = self.graph.n_runs(tensor.name), self.graph.accumulates(tensor.name)
        return self.trails(tensor), self._stays(tensor), self._is_variable(tensor, source), *in_slices

    def _is_variable(self, tensor: Tensor, source: End) -> bool:
        """Whether the source is a variable itself."""
        return self.graph.producers[tensor.name].type == VARIABLE and not source.is_shared

    def _stays(self, tensor: Tensor) -> bool:
        """Whether a tensor is a parameter that is never communicated in the forward pass."""
        return not self.gathers_parameters and self.graph.producers[tensor.name].type == VARIABLE

    def along(self, tensor: Tensor, source: End, target: End, table: Table) -> Costs:
        """Reshardings within each state of one node: int64[K] each."""
        *_, of_source = source.pairs
        *_, of_target = target.pairs
        return self._by_pair(tensor, source, target, table).at(of_source, of_target)

    def by_state(self, tensor: Tensor, source: End, target: End, table: Table) -> Costs:
        """Between the states of two nodes."""
        key = self._key(tensor, source, target, table)
        if key not in self._expanded:
            pairs = np.ix_(source.pairs[2], target.pairs[2])
            self._expanded[key] = self._by_pair(tensor, source, target, table).at(*pairs)
        return self._expanded[key]

    def _by_pair(self, tensor: Tensor, source: End, target: End, table: Table) -> Costs:
        """Between the distinct (place, way) of both ends."""
        (left, of_left, _), (wanted, of_wanted, _) = source.pairs, target.pairs
        mem, time_ns = np.zeros((2, len(left), len(wanted)), np.int64)
        transient, held = np.zeros((2, *mem.shape), np.int64)
        for way in np.unique(of_left):
            for taken in np.unique(of_wanted):
                part = np.ix_(of_left == way, of_wanted == taken)
                places = np.ix_(left[of_left == way], wanted[of_wanted == taken])
                of_part = [cost[places] for cost in self._matrix(tensor, source, target, table[way][taken])]
                mem[part], time_ns[part] = of_part
                if way == REGATHERED and taken != PASSED:
                    kept = self._matrix(tensor, source, target, table[LEFT][taken])[0][places]
                    allowed = (of_part[0] < INFEASIBLE) & (kept < INFEASIBLE)
                    transient[part] = np.where(allowed, np.maximum(kept - of_part[0], 0), 0)
                if taken == HELD and table[way][taken] in (Keeping.AGAIN, Keeping.AGAIN_OF_KEPT):
                    held[part] = self._matrix(tensor, source, target, Keeping.COPY_OF_KEPT)[0][places]
        if self._stays(tensor):
            gathered = self._matrix(tensor, source, target, Keeping.LOCAL_OF_AGAIN)[1] >= INFEASIBLE
            time_ns[gathered[np.ix_(left, wanted)]] = INFEASIBLE
        trailing_ns = self._trailing_ns(tensor, source, target)
        trailing_ns = None if trailing_ns is None else trailing_ns[np.ix_(left, wanted)]
        there = [each if each.any() else None for each in (transient, held)]
        return Costs(mem, time_ns, trailing_ns, *there)

    def _matrix(self, tensor: Tensor, source: End, target: End, keeping: Keeping) -> tuple[np.ndarray, np.ndarray]:
        left, wanted = source.choice.values, target.choice.values
        of_variable = self._is_variable(tensor, source)
        key = tensor.shape, tensor.item_bytes, id(left), id(wanted), keeping, *self._kind(tensor, source)
        if key not in self._costs:
            mem, time_ns = self.reshardings.matrix(tensor, left, wanted, keeping, of_variable)
            if self.graph.accumulates(tensor.name):
                mem = mem + accumulators_bytes(tensor, left, wanted)
            n_runs = np.where(time_ns < INFEASIBLE, self.graph.n_runs(tensor.name), 1)
            self._costs[key] = mem, time_ns * n_runs
            self._alive += [left, wanted]
        return self._costs[key]

    def _trailing_ns(self, tensor: Tensor, source: End, target: End) -> np.ndarray | None:
        if not self.trails(tensor):
            return None
        left, wanted = source.choice.values, target.choice.values
        of_variable = self._is_variable(tensor, source)
        key = tensor.shape, tensor.item_bytes, id(left), id(wanted), of_variable
        if key not in self._returning:
            self._returning[key] = self.reshardings.returning_ns(tensor, left, wanted, of_variable)
            self._alive += [left, wanted]
        return self._returning[key]

    def choosing(self, tensor: Tensor, source: End, target: End, tables: tuple[Table, Table]) -> Choosing | None:
        """To keep a copy or to make it again, for each way in which the source is left; None where that can't pay.

        Args:
            tables: of a copy that is kept, and of one that is made again.
        """
        key = self._key(tensor, source, target, sum(tables, start=()))
        if key not in self._choosing:
            of_kept, of_again = (self._by_pair(tensor, source, target, table) for table in tables)
            mem = np.stack([of_kept.mem, of_again.mem], axis=2)
            time_ns = np.stack([of_kept.time_ns, of_again.time_ns], axis=2)
            nothing = np.zeros_like(of_kept.mem)
            there = [
                np.stack([nothing if each is None else each for each in by_choice], axis=2)
                for by_choice in ((of_kept.transient, of_again.transient), (of_kept.held, of_again.held))
            ]
            told_apart = of_kept.trailing_ns, *(each.sum(axis=2) for each in there)
            beside = [each for each in told_apart if each is not None]
            class_of, of_class, choice = choice_states(mem, time_ns, np.concatenate(beside, axis=1))
            self._choosing[key] = None
            if choice.any():
                member = np.unique(class_of, return_index=True)[1][of_class]
                (*_, of_source), (*_, of_target) = source.pairs, target.pairs
                to_choice = np.where(class_of[of_source][:, None] == of_class[None, :], 0, INFEASIBLE)
                mem, time_ns, *there = (cost[member, :, choice][:, of_target] for cost in (mem, time_ns, *there))
                trailing_ns = None if of_kept.trailing_ns is None else of_kept.trailing_ns[member][:, of_target]
                of_choice = Costs(mem, time_ns, trailing_ns, *(each if each.any() else None for each in there))
                self._choosing[key] = Choosing(
                    choice == 1, np.zeros(len(choice), np.int64), Costs(np.zeros_like(to_choice), to_choice), of_choice
                )
        return self._choosing[key]


def accumulators_bytes(tensor: Tensor, sources: Sequence[Demand], demands: Sequence[Demand]) -> np.ndarray:
    """Memory of the gradients that are accumulated at copies of a tensor, int64[sources, demands]."""
    return np.array(
        [[accumulator_bytes(tensor, source.layout, demand) for demand in demands] for source in sources], np.int64
    )
