"""The arrays of a Problem's costs: of deliveries between the states of nodes, each built once and shared by identity."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from .costing import DeliveryCosting, Keeping
from .evaluation import Choice
from .ft.choices import choice_states
from .ft.problem import INFEASIBLE
from .ir import Graph, Tensor
from .rules.rule import Demand

Costs = tuple[np.ndarray, np.ndarray, np.ndarray | None]
"""Memory, time, and of the time what only updates of variables wait for; None where that is nothing."""


@dataclass(frozen=True, eq=False)
class Choosing:
    """A delivery with a choice, as a node between its ends.

    Attributes:
        is_remade: whether a state makes the copy again, bool[M].
        nothing: the costs of the node itself, zeros[M].
        to_choice: costs between source and node, each int64[K of source, M]: nothing, or forbidden.
        of_choice: costs between node and target, each int64[M, K of target].
    """

    is_remade: np.ndarray
    nothing: np.ndarray
    to_choice: Costs
    of_choice: Costs


class DeliveryArrays:
    """What deliveries of a graph's tensors cost, as arrays over the layouts in which they are left and the demands."""

    def __init__(self, deliveries: DeliveryCosting, graph: Graph) -> None:
        self.deliveries, self.graph = deliveries, graph
        self._alive: list[object] = []  # what keys name by its id
        self._expected: set[tuple[object, ...]] = set()
        self._costs: dict[tuple[object, ...], Costs] = {}
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
                self.deliveries.expect(tensor.shape, tensor.item_bytes, [*forward, *backward])

    def trails(self, tensor: Tensor) -> bool:
        """Whether a tensor's gradient keeps nobody but an update waiting, and compute may run meanwhile."""
        return self.deliveries.overlaps and tensor.name in self.graph.made_of_variables

    def along(self, tensor: Tensor, left: Choice[Demand], demands: Choice[Demand], keeping: Keeping) -> np.ndarray:
        """Deliveries within each state of one node, their memory, time and what of it trails: int64[3, K]."""
        costs = [
            np.zeros(len(left.place), np.int64) if cost is None else cost[left.place, demands.place]
            for cost in self._matrix(tensor, left, demands, keeping)
        ]
        return np.stack(costs)

    def _matrix(self, tensor: Tensor, left: Choice[Demand], demands: Choice[Demand], keeping: Keeping) -> Costs:
        key = tensor.shape, tensor.item_bytes, id(left.values), id(demands.values), keeping, self.trails(tensor)
        if key not in self._costs:
            trailing_ns = None
            if self.trails(tensor):
                trailing_ns = self.deliveries.returning_ns(tensor, left.values, demands.values)
            self._costs[key] = (*self.deliveries.matrix(tensor, left.values, demands.values, keeping), trailing_ns)
            self._alive += [left.values, demands.values]
        return self._costs[key]

    def by_state(self, tensor: Tensor, left: Choice[Demand], demands: Choice[Demand], keeping: Keeping) -> Costs:
        """Between the states of two nodes, int64[K of source, K of target] each."""
        key = tensor.shape, tensor.item_bytes, id(left), id(demands), keeping, self.trails(tensor)
        if key not in self._expanded:
            mem, time_ns, trailing_ns = self._matrix(tensor, left, demands, keeping)
            pairs = np.ix_(left.place, demands.place)
            self._expanded[key] = (mem[pairs], time_ns[pairs], None if trailing_ns is None else trailing_ns[pairs])
            self._alive += [left, demands]
        return self._expanded[key]

    def either(
        self,
        tensor: Tensor,
        left: Choice[Demand],
        demands: Choice[Demand],
        keepings: tuple[Keeping, ...],
        states: tuple[np.ndarray, np.ndarray],
        of_source: bool = False,
    ) -> Costs:
        """The same to a shared copy, or from it (``of_source``), which is kept in one of several ways.

        Args:
            states: by state of the shared copy's node, its place among the demands and among the ways to keep it.
        """
        place, way = states
        kind = keepings, self.trails(tensor), of_source
        key = tensor.shape, tensor.item_bytes, id(left), id(demands), kind, place.tobytes(), way.tobytes()
        if key not in self._expanded:
            costs = [self._matrix(tensor, left, demands, keeping) for keeping in keepings]

            def by_state(cost_by_way: list[np.ndarray]) -> np.ndarray:
                if of_source:
                    return np.stack(cost_by_way)[way, place][:, demands.place]
                return np.stack(cost_by_way)[way, :, place].T[left.place]

            mem, time_ns = by_state([cost[0] for cost in costs]), by_state([cost[1] for cost in costs])
            trailing = [cost[2] for cost in costs if cost[2] is not None]
            self._expanded[key] = mem, time_ns, by_state(trailing) if trailing else None
            self._alive += [left, demands]
        return self._expanded[key]

    def choosing(
        self, tensor: Tensor, left: Choice[Demand], demands: Choice[Demand], keeping: Keeping, never: np.ndarray
    ) -> Choosing | None:
        """To keep a copy or to make it again, for each way in which the source is left; None where that can't pay."""
        key = tensor.shape, tensor.item_bytes, id(left), id(demands), keeping, self.trails(tensor), never.tobytes()
        if key not in self._choosing:
            ways = keeping, Keeping.AGAIN if keeping == Keeping.COPY else Keeping.AGAIN_OF_KEPT
            (*of_kept, trailing_ns), (*of_again, _) = (self._matrix(tensor, left, demands, way) for way in ways)
            mem, time_ns = (
                np.stack([kept, np.where(never, kept, again)], axis=2) for kept, again in zip(of_kept, of_again, strict=True)
            )
            class_of, of_class, choice = choice_states(mem, time_ns, trailing_ns)
            self._choosing[key] = None
            if choice.any():
                member = np.unique(class_of, return_index=True)[1][of_class]
                to_choice = np.where(class_of[left.place][:, None] == of_class[None, :], 0, INFEASIBLE)
                mem, time_ns = (cost[member, :, choice][:, demands.place] for cost in (mem, time_ns))
                trailing_ns = None if trailing_ns is None else trailing_ns[member][:, demands.place]
                nothing = np.zeros(len(choice), np.int64)
                free = np.zeros_like(to_choice)
                self._choosing[key] = Choosing(
                    choice == 1, nothing, (free, to_choice, None), (mem, time_ns, trailing_ns)
                )
            self._alive += [left, demands]
        return self._choosing[key]
