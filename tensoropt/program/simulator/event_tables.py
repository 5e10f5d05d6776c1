"""The tables that :mod:`.events` reads and writes: flat arrays of integers."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np

from .actions import Chain
from .network import Action, Network

Numbers = np.ndarray
"""int64[n]."""


def packed(values: Iterable[int]) -> Numbers:
    """Return integers as :mod:`.events` takes them."""
    return np.array(list(values), np.int64)


def largest(values: Numbers) -> int:
    """Return the largest integer; 0 if there is none."""
    return int(values.max(initial=0))


class WorkTables:
    """The chains, actions and works that occur, each once and numbered; more are added as they come."""

    def __init__(self, network: Network) -> None:
        self._network, self._n_classes = network, len(network.classes)
        self._chains: dict[Chain, int] = {}
        self._actions: dict[Action, int] = {}
        # Where each chain, the members and the uses of each work begin, and where the last one ends.
        self._chain_start, self._member_start, self._use_start = (array("q", [0]) for _ in range(3))
        self._chain, self._members, self._uses, self._use_ns = (array("q") for _ in range(4))
        self._work_of = array("q")  # of each action and class, the work
        self._first, self._size, self._latency = (array("q") for _ in range(3))

    def chain(self, chain: Chain) -> int:
        if chain not in self._chains:
            self._chains[chain] = len(self._chains)
            self._chain.extend([self._action(action) for action in chain])
            self._chain_start.append(len(self._chain))
        return self._chains[chain]

    def length(self, chain: int) -> int:
        return self._chain_start[chain + 1] - self._chain_start[chain]

    def _action(self, action: Action) -> int:
        if action not in self._actions:
            self._actions[action] = len(self._actions)
            of_class = [0] * self._n_classes
            for work in self._network.works(action):
                for one in work.classes:
                    of_class[one] = len(self._first)
                self._first.append(work.classes[0])
                self._size.append(len(work.classes))
                self._latency.append(work.latency_ns)
                self._members.extend(work.classes)
                self._member_start.append(len(self._members))
                self._uses.extend([resource for resource, _ in work.uses])
                self._use_ns.extend([ns for _, ns in work.uses])
                self._use_start.append(len(self._uses))
            self._work_of.extend(of_class)
        return self._actions[action]

    def packed(self) -> tuple[Numbers, ...]:
        """Return the sequences of chains and works, in the order in which :func:`.events.run` takes them."""
        growing = (
            *(self._chain_start, self._chain, self._work_of, self._first, self._size, self._member_start, self._members),
            *(self._use_start, self._uses, self._use_ns, self._latency),
        )
        return tuple(np.array(column) for column in growing)


class Buffers:
    """The events of a simulated step, and its state at some of them.

    Attributes:
        log: of each event its slot, action, ready time and end.
        arrived: of each slot, the number of the event after which it waited for nothing more; -1 from the beginning.
        saved: the states before every ``stride``-th event, as :func:`.events.run` writes them.
    """

    def __init__(self, most_events: int, n_saved: int, n_resources: int, n_slots: int) -> None:
        self.stride = -(-most_events // n_saved)
        self.most_events = most_events
        self._width = n_resources + 7 * n_slots + 1
        self.log: tuple[Numbers, ...] = tuple(np.zeros((4, most_events), np.int64))
        self.arrived: Numbers = np.full(n_slots, -1)
        self.saved: Numbers = np.zeros((most_events // self.stride + 1) * self._width, np.int64)

    def take(self, other: Buffers, n_from: int, n_events: int) -> None:
        """Take over the events of other buffers of the same size from a saved one on."""
        for own, source in zip(self.log, other.log, strict=True):
            own[n_from:n_events] = source[n_from:n_events]
        first, last = n_from // self.stride * self._width, -(-n_events // self.stride) * self._width
        self.saved[first:last] = other.saved[first:last]
        self.arrived = other.arrived.copy()
