"""The delta simulation: the step of a strategy that differs from one that was simulated, with only what that changes.

FlexFlow's Algorithm 2 updates the task graph and then the times of the tasks that change. Here the graph never changes: a
strategy decides only the chain of actions of each node (:mod:`...program.simulator.step_graph`), and a change of one
operator gives a few nodes other chains. Nothing differs before the first of these nodes becomes ready. So the state of the
simulation is kept at :data:`N_SAVED` points, and the events are processed again from the last point before that one. The
timeline is the full simulation's, to the nanosecond: both take the same events in the same order.

A changed strategy is *tried*; then it is kept, or forgotten at no cost.

Complexity: O(changed nodes + E' log E') for E' events from the saved point on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...program.simulator.actions import Chain
from ...program.simulator.event_tables import Buffers, WorkTables, largest, packed
from ...program.simulator.network import Network
from ...program.simulator.step_graph import StepGraph

N_SAVED = 16


class Event(NamedTuple):
    """The beginning and end of an action of a node; the action is its number in the chain.

    A node that has no actions has one event, of action 0, which takes no time.
    """

    node: int
    first: int
    action: int
    ready_ns: int
    end_ns: int


class DeltaSimulation:
    """A simulated step whose nodes' chains of actions can be changed."""

    def __init__(self, graph: StepGraph, chains: Sequence[Chain], network: Network) -> None:
        self._n_classes, self._n_resources = len(network.classes), len(network.resources)
        lead_start = np.cumsum([0, *map(len, graph.leads_to)])
        self._lead = packed(lead_start), packed(after for followers in graph.leads_to for after in followers)
        self._missing = packed(len(before) for before in graph.waits_for for _ in range(self._n_classes))
        self._tables = WorkTables(network)
        self._chains = packed(map(self._tables.chain, chains))
        # An action is an event for each class at most, and a node without any is one.
        self._most_events = self._n_classes * sum(max(1, len(chain)) for chain in chains)
        self._trial: dict[int, int] = {}
        self._n_from = self._n_events = 0
        self._make_room()

    def _make_room(self) -> None:
        """Simulate from the beginning, with room for more events than now."""
        size = 2 * self._most_events, N_SAVED, self._n_resources, len(self._missing)
        self._kept, self._tried = Buffers(*size), Buffers(*size)
        self._n_events = self._run(self._kept, 0)
        self.makespan_ns = largest(self._kept.log[3][: self._n_events])

    def try_chains(self, changed: Mapping[int, Chain]) -> int:
        """Return the makespan, in nanoseconds, if nodes had other chains; given are some nodes' chains, by their numbers."""
        numbers = {node: self._tables.chain(chain) for node, chain in changed.items()}
        self._trial = {node: chain for node, chain in numbers.items() if chain != self._chains[node]}
        if not self._trial:
            return self.makespan_ns
        before = {node: int(self._chains[node]) for node in self._trial}
        more = self._n_classes * sum(
            max(1, self._tables.length(chain)) - max(1, self._tables.length(before[node]))
            for node, chain in self._trial.items()
        )
        if self._most_events + more > self._kept.most_events:
            self._most_events += more
            self._make_room()
            self._most_events -= more
        self._put(self._trial)
        self._n_tried = self._run(self._tried, self._n_same(self._trial))
        self._put(before)
        kept_ends, tried_ends = self._kept.log[3], self._tried.log[3]
        self._more = more
        self._tried_ns = max(largest(kept_ends[: self._n_from]), largest(tried_ends[self._n_from : self._n_tried]))
        return self._tried_ns

    def keep(self) -> None:
        """Keep what was tried last."""
        if not self._trial:
            return
        self._put(self._trial)
        self._kept.take(self._tried, self._n_from, self._n_tried)
        self._n_events, self.makespan_ns = self._n_tried, self._tried_ns
        self._most_events += self._more
        self._trial = {}

    def events(self) -> list[Event]:
        """Return the events of the kept step, in the order in which they became ready."""
        columns = (map(int, column[: self._n_events]) for column in self._kept.log)
        return [Event(*divmod(slot, self._n_classes), *rest) for slot, *rest in zip(*columns, strict=True)]

    def _put(self, chains: Mapping[int, int]) -> None:
        for node, chain in chains.items():
            self._chains[node] = chain

    def _n_same(self, nodes: Iterable[int]) -> int:
        """Return how many events of the kept step come before the first that these nodes can change."""
        arrived, n = self._kept.arrived, self._n_classes
        return min(int(arrived[slot]) for node in nodes for slot in range(node * n, node * n + n)) + 1

    def _run(self, buffers: Buffers, n_same: int) -> int:
        """Process events from the last saved point of at most ``n_same`` events of the kept step; return their number."""
        from ...program.simulator.events import run  # here, since it loads Numba

        kept, n_slots = self._kept, len(self._missing)
        chosen = n_same // kept.stride
        tables = (*self._lead, self._chains, *self._tables.packed())
        self._n_from = chosen * kept.stride
        buffers.arrived = kept.arrived.copy() if chosen else np.full(n_slots, -1)
        state = np.zeros(self._n_resources, np.int64), np.stack([self._missing, *np.zeros((4, n_slots), np.int64)])
        sizes = self._n_from, kept.stride, self._n_classes
        return int(run(tables, *state, buffers.log, buffers.arrived, kept.saved, buffers.saved, *sizes))
