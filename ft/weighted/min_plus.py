"""Compute with arrays in the algebra (min, +): weighted costs, products, sums, classes of states."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..problem import Floats, Ints
from .elimination_steps import Grouping, Input

Mask = npt.NDArray[np.bool_]


class Pool:
    """Arrays that are reused: memory that is new to the process is slow."""

    def __init__(self) -> None:
        self.free: dict[int, list[Floats]] = {}

    def take(self, shape: tuple[int, ...]) -> Floats:
        """Return an array of this shape with arbitrary contents."""
        size = math.prod(shape)
        free = self.free.get(size)
        flat: Floats = free.pop() if free else np.empty(size)
        return flat.reshape(shape)

    def put_back(self, array: Floats) -> None:
        """Give back an array that was taken, and that nobody looks at any more."""
        self.free.setdefault(array.size, []).append(array.reshape(-1))


def min_plus(left: Floats, right: Floats) -> Floats:
    """Return ``result[b, o, j] = min over g of left[b, o, g] + right[b, g, j]``."""
    from . import numba_min_plus

    result: Floats = numba_min_plus.min_plus(np.ascontiguousarray(left), np.ascontiguousarray(right))
    return result


def weigh(mem: Ints, time: Ints, forbidden: Mask, weights: tuple[float, float], result: Floats) -> None:
    """Write weighted costs into ``result``, which is contiguous, infinite where they are forbidden."""
    from . import numba_min_plus

    flat_mem, flat_time, flat_forbidden = (np.ascontiguousarray(array).reshape(-1) for array in (mem, time, forbidden))
    numba_min_plus.weigh(flat_mem, flat_time, flat_forbidden, float(weights[0]), float(weights[1]), result.reshape(-1))


def added(tables: Sequence[Floats]) -> Floats:
    """Return the sum of the tables in their common broadcast shape; a single zero if there are none."""
    result: Floats = np.asarray(sum(tables[1:], tables[0])) if tables else np.zeros(1)
    return result


def least_of_classes(numbers: Floats, grouping: Grouping, axis: int = 0) -> Floats:
    """Return the least number of each class of an axis."""
    if grouping.is_all:
        return numbers
    order, starts = grouping.by_class
    result: Floats = np.minimum.reduceat(numbers.take(order, axis), starts, axis)
    return result


def expand(table: Floats, operand: Input) -> Floats:
    """Return a table by classes of a bucket's neighbours and groups of its variable.

    Args:
        operand: how the table lines up with the bucket.
    """
    result = table.transpose(operand.axes)
    for axis, selector in enumerate(operand.selectors):
        if not selector.is_all:
            result = result.take(selector.class_of, axis)
    return np.reshape(result, operand.expanded)


def least_of_expanded(expanded: Floats, operand: Input) -> Floats:
    """Return the least of all cells that each of a table's cells was expanded to, in the table's own order.

    Args:
        operand: how the table lines up with the bucket.
    """
    result: Floats = expanded.reshape([len(selector.class_of) for selector in operand.selectors])
    for axis, selector in enumerate(operand.selectors):
        result = least_of_classes(result, selector, axis)
    return np.transpose(result, np.argsort(operand.axes))


def less(whole: Floats, part: Floats, result: Floats) -> Floats:
    """Subtract a part, into ``result``; the difference is infinite where the part is."""
    with np.errstate(invalid="ignore"):
        np.subtract(whole, part, out=result)
    result[np.isinf(part)] = np.inf
    return result
