"""Describe what changes of a node's state do to a strategy's costs, for :mod:`.local_search`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..problem import Edge, Ints, Node

States = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """The changes that may be made at one node in one context: C changes.

    Attributes:
        nodes: int[N], the nodes that get other states.
        states: int32[C, N], the states that they get.
        mem, time: int64[C], the differences in the problem's memory and time.
        segments: int[M], the indices of the rematerialization segments that change.
        in_segments: int64[M, C], the differences in these segments' memory.
    """

    nodes: Ints
    states: States
    mem: Ints
    time: Ints
    segments: Ints
    in_segments: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Options:
    """The costs of a node's states, int64[K], where its neighbours' states are given.

    Attributes:
        numbers: the indices of the rematerialization segments that these states take memory in.
        segments: int64[len(numbers), K], the bytes that each state takes in each of these segments.
        allowed: the states whose memory and time are feasible.
    """

    mem: Ints
    time: Ints
    numbers: Ints
    segments: Ints
    allowed: Ints
    _best: dict[tuple[bool, int], int] = field(default_factory=dict)

    def best(self, by_time: bool, n_large: int) -> int:
        """Return the allowed state of least time, or else of least memory with the mean of the large segments added."""
        key = by_time, n_large
        if key not in self._best:
            mem = (self.mem + self.segments.sum(axis=0) // n_large)[self.allowed]
            time_ns = self.time[self.allowed]
            self._best[key] = int(self.allowed[np.lexsort((mem, time_ns) if by_time else (time_ns, mem))[0]])
        return self._best[key]


@dataclass(slots=True)
class Sum:
    """The differences that a change makes to memory, to time and to the memory of rematerialization segments."""

    mem: int = 0
    time: int = 0
    segments: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))

    def copy(self) -> Sum:
        return Sum(self.mem, self.time, self.segments.copy())

    def add(self, options: Options, state: int, sign: int = 1) -> None:
        """Add the costs of one state of a node, or subtract them with ``sign`` -1."""
        self.mem += sign * int(options.mem[state])
        self.time += sign * int(options.time[state])
        for index, n_bytes in zip(options.numbers.tolist(), options.segments[:, state].tolist(), strict=True):
            self.segments[index] += sign * n_bytes

    def add_difference(self, costs: Node | Edge, parts: Sequence[tuple[int, Ints]], new: Any, old: Any) -> None:
        """Add the difference that a node or an edge makes between one state (or pair of states) and another."""
        self.mem += int(costs.mem_bytes[new] - costs.mem_bytes[old])
        self.time += int(costs.time_ns[new] - costs.time_ns[old])
        for index, n_bytes in parts:
            self.segments[index] += int(n_bytes[new] - n_bytes[old])


def minimal(costs: Ints) -> Ints:
    """Return the indices of the Pareto-minimal columns; of equal columns, the first."""
    _, first = np.unique(costs, axis=1, return_index=True)
    first = np.sort(first)
    costs = costs[:, first]
    does_as_well = (costs[:, :, None] <= costs[:, None, :]).all(axis=0)
    indices: Ints = first[does_as_well.sum(axis=0) == 1]
    return indices
