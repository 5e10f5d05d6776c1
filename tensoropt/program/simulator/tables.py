"""What :mod:`.events` reads and writes: flat sequences of integers, NumPy arrays where it is compiled, else lists."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

import numpy as np

from .actions import Chain
from .network import Action, Network

Numbers = Any
"""int64[n], or a list of n integers."""


def event_loop() -> ModuleType:
    """Return :mod:`.events`, which is imported when it is first needed: it loads Numba."""
    from . import events

    return events


def packed(values: Iterable[int]) -> Numbers:
    """Return integers as :mod:`.events` takes them."""
    return np.array(list(values), np.int64) if event_loop().IS_COMPILED else list(map(int, values))


def filled(n: int, value: int = 0) -> Numbers:
    """Return ``n`` equal integers as :mod:`.events` takes them."""
    return np.full(n, value, np.int64) if event_loop().IS_COMPILED else [value] * n


def largest(values: Numbers) -> int:
    """Return the largest integer; 0 if there is none."""
    return max(values, default=0) if isinstance(values, list) else int(values.max(initial=0))


class WorkTables:
    """The chains, actions and works that occur, each once and numbered; more are added as they come."""

    def __init__(self, network: Network) -> None:
        self._network, self._n_classes = network, len(network.classes)
        self._chains: dict[Chain, int] = {}
        self._actions: dict[Action, int] = {}
        self._lengths: list[int] = []
        self._chain: list[int] = []
        self._work_of: list[int] = []  # of each action and class, the work
        self._first: list[int] = []
        self._latency: list[int] = []
        self._members: list[tuple[int, ...]] = []
        self._uses: list[tuple[tuple[int, int], ...]] = []
        self._packed: tuple[Numbers, ...] | None = None

    def chain(self, chain: Chain) -> int:
        """Return the number of a chain."""
        if chain not in self._chains:
            self._chains[chain] = len(self._chains)
            self._lengths.append(len(chain))
            self._chain += [self._action(action) for action in chain]
            self._packed = None
        return self._chains[chain]

    def length(self, chain: int) -> int:
        """Return the number of actions of a chain."""
        return self._lengths[chain]

    def _action(self, action: Action) -> int:
        if action not in self._actions:
            self._actions[action] = len(self._actions)
            of_class = [0] * self._n_classes
            for work in self._network.works(action):
                for one in work.classes:
                    of_class[one] = len(self._first)
                self._first.append(work.classes[0])
                self._latency.append(work.latency_ns)
                self._members.append(work.classes)
                self._uses.append(work.uses)
            self._work_of += of_class
        return self._actions[action]

    def packed(self) -> tuple[Numbers, ...]:
        """Return the sequences of chains and works, in the order in which :func:`.events.run` takes them."""
        if self._packed is None:
            sizes = list(map(len, self._members))
            self._packed = (
                packed(np.cumsum([0, *self._lengths])),
                packed(self._chain),
                packed(self._work_of),
                packed(self._first),
                packed(sizes),
                packed(np.cumsum([0, *sizes])),
                packed(one for members in self._members for one in members),
                packed(np.cumsum([0, *map(len, self._uses)])),
                packed(resource for uses in self._uses for resource, _ in uses),
                packed(ns for uses in self._uses for _, ns in uses),
                packed(self._latency),
            )
        return self._packed


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
        self.log: tuple[Numbers, ...] = tuple(filled(most_events) for _ in range(4))
        self.arrived: Numbers = filled(n_slots, -1)
        self.saved: Numbers = filled((most_events // self.stride + 1) * self._width)

    def take(self, other: Buffers, n_from: int, n_events: int) -> None:
        """Take over the events of other buffers of the same size from a saved one on."""
        for own, theirs in zip(self.log, other.log, strict=True):
            own[n_from:n_events] = theirs[n_from:n_events]
        first, last = n_from // self.stride * self._width, -(-n_events // self.stride) * self._width
        self.saved[first:last] = other.saved[first:last]
        self.arrived = other.arrived.copy()
