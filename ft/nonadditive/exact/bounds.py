"""Bound what a strategy costs at least that has a cell, an arc or a point, by weighted sums along a problem's steps.

For weights a, b >= 0 of memory and time, and weights w of segments that add up to at most a, every strategy has

    a mem + b time  >=  a saved + sum over segments of w transient + b time

since memory is saved memory plus the largest segment's. The right side is additive. Forward (``forward``), each cell of each
table gets the least that its part of a strategy costs; backward (``backward``), the least that the rest costs.

What is known are real strategies. Between two neighbours, by memory, lies a *corner*: one below the memory of the one and
one below the time of the other. A strategy that no known one equals or beats costs at most as much as a corner, in both
costs. So what costs more than all corners, each by some weights, is nowhere on the unknown part of the frontier
(:class:`Corners`).

All weights are done at once, as rows of arrays. Numbers are float64: sums of at most some thousand numbers that aren't
negative are off by less than ROUNDING of themselves.

Complexity: O(weights x arcs).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...problem import Ints
from ...tables.table import States
from .eliminations import FIRST, MEM, TIME, Eliminations, Step

Floats = npt.NDArray[np.float64]
Bits = npt.NDArray[np.uint64]
ROUNDING = 1e-11
MAX_CORNERS = 256
"""Corners that are told apart; where there are more, neighbours are joined, at the larger of both costs."""
AT_ONCE = 1 << 15
"""Arcs of several steps from which these are looked at together."""
_WORD = 64


def forward(eliminations: Eliminations, weights: Floats) -> list[Floats]:
    """Return the least weighted cost of each cell of each table: float64[W, C].

    Args:
        weights: float64[W, FIRST + segments], the weights of the rows of costs.
    """
    least = [np.empty(0) if costs is None else weights @ costs for costs in eliminations.costs]
    for step in eliminations.steps:
        least[step.result] = np.minimum.reduceat(_sums(step, least), _begins(step.target), axis=1)
    return least


def backward(eliminations: Eliminations, least: list[Floats]) -> list[Floats]:
    """Return the least weighted cost of all that isn't in a cell's part of a strategy: float64[W, C] for each table.

    Args:
        least: the result of ``forward``.
    """
    beyond = [np.empty(0)] * len(least)
    last = eliminations.steps[-1].result
    beyond[last] = np.zeros_like(least[last])
    for step in reversed(eliminations.steps):
        rest = beyond[step.result][:, step.target]
        for table, cell, other, other_cell in (
            (step.a, step.a_cell, step.b, step.b_cell),
            (step.b, step.b_cell, step.a, step.a_cell),
        ):
            order = np.argsort(cell, kind="stable")
            sums = (least[other][:, other_cell] + rest)[:, order]
            beyond[table] = np.minimum.reduceat(sums, _begins(cell[order]), axis=1)
    return beyond


def best_strategies(eliminations: Eliminations, least: list[Floats]) -> States:
    """Return for each row of weights a strategy of the least weighted cost: int32[W, variables]."""
    last = eliminations.steps[-1].result
    n_weights = len(least[last])
    result = np.zeros((n_weights, eliminations.n_variables), np.int32)
    cells: list[Ints] = [np.empty(0, np.int64)] * len(least)
    cells[last] = np.zeros(n_weights, np.int64)
    for step in reversed(eliminations.steps):
        first = np.searchsorted(step.target, cells[step.result])
        after = np.searchsorted(step.target, cells[step.result], side="right")
        arcs = np.empty(n_weights, np.int64)
        for row, (begin, end) in enumerate(zip(first.tolist(), after.tolist(), strict=True)):
            sums = least[step.a][row, step.a_cell[begin:end]] + least[step.b][row, step.b_cell[begin:end]]
            arcs[row] = begin + int(sums.argmin())
        cells[step.a], cells[step.b] = step.a_cell[arcs], step.b_cell[arcs]
        if step.variable is not None:
            table = step.a if step.variable in eliminations.scopes[step.a] else step.b
            column = eliminations.scopes[table].index(step.variable)
            result[:, step.variable] = eliminations.states[table][cells[table], column]
    return result


def _sums(step: Step, least: list[Floats]) -> Floats:
    """Return the least weighted cost of both cells of each arc: float64[W, A]."""
    sums: Floats = least[step.a][:, step.a_cell] + least[step.b][:, step.b_cell]
    return sums


def _begins(ascending: Ints) -> Ints:
    """Return the indices at which a new number begins."""
    begins = np.ones(len(ascending), np.bool_)
    np.not_equal(ascending[1:], ascending[:-1], out=begins[1:])
    return np.flatnonzero(begins)


@dataclass(frozen=True, slots=True, eq=False)
class Corners:
    """The corners between known strategies that, by some bounds, a strategy may be below: float64[corners] each."""

    mem: Floats
    time: Floats

    @classmethod
    def between(cls, mem: Ints, time_ns: Ints, weights: Floats, least: Floats) -> Corners:
        """Return the corners between points that are sorted by memory.

        Args:
            mem, time_ns: the costs of known strategies, or what is within a factor of these.
            weights: float64[W, FIRST + segments]; they have a row of memory alone, and one of time alone.
            least: the least weighted costs of all strategies, float64[W].
        """
        of_mem, of_time = np.append(mem - 1.0, np.inf), np.insert(time_ns - 1.0, 0, np.inf)
        corners = cls(of_mem, of_time)
        live = np.ones(len(of_mem), np.bool_)
        for row, bound in zip(weights, least, strict=True):
            live &= corners.limits(row) >= bound
        of_mem, of_time = of_mem[live], of_time[live]
        size = -(-len(of_mem) // MAX_CORNERS)
        if size > 1:
            starts = np.arange(0, len(of_mem), size)
            of_mem, of_time = np.maximum.reduceat(of_mem, starts), np.maximum.reduceat(of_time, starts)
        return cls(of_mem, of_time)

    def __len__(self) -> int:
        return len(self.mem)

    def limits(self, weights: Floats) -> Floats:
        """Return the weighted cost of each corner, rounded up."""
        parts = ((weight, cost) for weight, cost in ((weights[MEM], self.mem), (weights[TIME], self.time)) if weight)
        total: Floats = sum((weight * cost for weight, cost in parts), np.zeros(len(self)))
        return total * (1 + ROUNDING)

    def tests(self, weights: Floats) -> list[_Test]:
        """Return the test for each row of weights."""
        return [_Test.of(self.limits(row)) for row in weights]


@dataclass(frozen=True, slots=True, eq=False)
class _Test:
    """A test which corners a weighted cost is not above.

    Attributes:
        limits: the corners' weighted costs, ascending.
        masks: uint64[corners + 1, words], where row k has the bits of all corners but the k lowest.
    """

    limits: Floats
    masks: Bits

    @classmethod
    def of(cls, limits: Floats) -> _Test:
        order = np.argsort(limits, kind="stable")
        n_corners = len(order)
        single = np.zeros((n_corners + 1, -(-n_corners // _WORD)), np.uint64)
        single[np.arange(n_corners), order // _WORD] = np.uint64(1) << (order % _WORD).astype(np.uint64)
        return cls(limits[order], np.bitwise_or.accumulate(single[::-1], axis=0)[::-1])

    def bits(self, costs: Floats) -> Bits:
        """Return the bits of the corners that each cost is not above: uint64[costs, words]."""
        found: Bits = self.masks[np.searchsorted(self.limits, costs)]
        return found


def promising_arcs(
    eliminations: Eliminations, least: list[Floats], beyond: list[Floats], corners: Corners, weights: Floats
) -> list[npt.NDArray[np.bool_]]:
    """Return for each step which of its arcs a strategy below a corner may have: bool[A].

    Args:
        least, beyond: the results of ``forward`` and ``backward`` for the weights.
    """
    tests, found, waiting = corners.tests(weights), [], list[Floats]()

    def look() -> None:
        of_all = np.concatenate(waiting, axis=1)
        bits = tests[0].bits(of_all[0])
        for test, row in zip(tests[1:], of_all[1:], strict=True):
            bits &= test.bits(row)
        found.extend(np.split(bits.any(axis=1), np.cumsum([each.shape[1] for each in waiting])[:-1]))
        waiting.clear()

    for step in eliminations.steps:
        waiting.append(_sums(step, least) + beyond[step.result][:, step.target])
        if sum(each.shape[1] for each in waiting) > AT_ONCE:
            look()
    if waiting:
        look()
    return found


def weights_of(directions: Floats, of_segments: Floats) -> Floats:
    """Return weights of the rows of costs: float64[D, FIRST + segments].

    Args:
        directions: float64[D, 2], the weights of memory and of time.
        of_segments: float64[D, segments], the segments' parts of memory's weight, which add up to at most 1.
    """
    result = np.zeros((len(directions), FIRST + of_segments.shape[1]))
    result[:, MEM], result[:, TIME] = directions.T
    result[:, FIRST:] = directions[:, :1] * of_segments
    return result
