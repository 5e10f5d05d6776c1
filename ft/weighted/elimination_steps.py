"""Describe the steps of an elimination plan: which tables each adds up, how these line up, and the table that results.

A step eliminates one variable. Its tables form one *bucket*, or several where one would be too large. The steps are the same
for all weights: :mod:`.elimination_plan` plans them, :mod:`.passes` executes them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..problem import Ints


@dataclass(frozen=True, eq=False)
class Grouping:
    """The class of each of some states, or groups of states, with what follows from it whatever the weights.

    Attributes:
        class_of: int64[K], from 0, without gaps.
    """

    class_of: Ints
    n_classes: int

    @classmethod
    def of(cls, classes: Sequence[Ints]) -> Grouping:
        """Return the grouping whose classes are the states that have equal classes in all of some groupings."""
        code = classes[0]
        for class_of_state in classes[1:]:
            code = np.unique(code, return_inverse=True)[1] * (int(class_of_state.max()) + 1) + class_of_state
        distinct, class_of = np.unique(code, return_inverse=True)
        return cls(class_of.astype(np.int64, copy=False), len(distinct))

    @cached_property
    def is_all(self) -> bool:
        """Whether each class is of one state, and classes are in the order of states."""
        return len(self.class_of) == self.n_classes and bool((self.class_of[1:] > self.class_of[:-1]).all())

    @cached_property
    def by_class(self) -> tuple[Ints, Ints]:
        """The states by ascending class, and where each class begins there."""
        order = np.argsort(self.class_of, kind="stable")
        return order, np.searchsorted(self.class_of[order], np.arange(self.n_classes))


@dataclass(frozen=True, slots=True, eq=False)
class Input:
    """A table in a bucket.

    Attributes:
        axes: the order in which its axes are put to line up with the bucket's.
        selectors: for each axis in that order, the table's class of each of the bucket's groups or classes.
        expanded: its shape next to the bucket's other tables, 1 for a neighbour that it does not depend on.
    """

    table: int
    axes: tuple[int, ...]
    selectors: tuple[Grouping, ...]
    expanded: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Bucket:
    """Tables that choose a state of one variable together.

    The tables are in two parts, so that the least sum is a product of matrices in the algebra (min, +): one for each
    combination of classes of those neighbours that both parts depend on.

    Attributes:
        group: the group of each state; states of one group differ in the variable's own cost only.
        left: tables of several variables, by [neighbours of both parts, of this part alone, group].
        right: tables of several variables, by [neighbours of both parts, group, of this part alone].
        axes: how many classes the neighbours have: those of both parts, of the left alone, of the right alone.
        result: the number of the table that it makes.
    """

    variable: int
    group: Grouping
    left: tuple[Input, ...]
    right: tuple[Input, ...]
    axes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    result: int

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Return how many combinations of classes the neighbours have: of both parts, of the left, of the right alone."""
        return math.prod(self.axes[0]), math.prod(self.axes[1]), math.prod(self.axes[2])

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the result, with one axis per neighbour."""
        return self.axes[0] + self.axes[1] + self.axes[2]

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Return the tables of both parts."""
        return self.left + self.right


@dataclass(frozen=True, slots=True, eq=False)
class EliminationStep:
    """The elimination of one variable.

    Attributes:
        own: the numbers of the tables that depend on this variable only.
        buckets: the other tables; more than one bucket is a relaxation.
    """

    variable: int
    own: tuple[int, ...]
    buckets: tuple[Bucket, ...]
