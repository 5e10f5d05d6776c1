"""Find the states of the nodes that stand for edges with several ways to be paid for.

A resharding may be done in several ways: save the copy before it, the copy after it, or both; or reshard again in the
backward pass. Then an edge's cost depends on a third thing, the *choice*. Such an edge becomes a node whose states are pairs
(class of the source's states, choice). The edge to the source forbids states of another class; the edge to the target has
the costs of the choice. Source states whose costs are equal for all targets and choices form one class, so there are no more
classes than the tensor has layouts. The search itself stays as it is: exact, bounded, pruned.

Choices that are dominated for all targets of a class are left out.

Complexity: O(K_s K_t C) to build.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .problem import Ints


def choice_states(
    mem_bytes: Sequence[Ints], time_ns: Sequence[Ints], others: Sequence[Ints]
) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the (class of source states, choice) pairs that may matter.

    Args:
        mem_bytes, time_ns: for each of C choices int64[K of source, K of target], at least 0.
        others: arrays of the same number of rows and no negative numbers, something else that must be equal for the states
            of one class.

    Returns:
        The first source state of each class, the class of each source state, then the class and the choice of each pair.
        Classes are in ascending order of their costs, read as rows.
    """
    first, class_of = _classes_of_rows(mem_bytes, time_ns, others)
    of_class, choice = np.nonzero(~_dominated([costs[first] for costs in mem_bytes], [costs[first] for costs in time_ns]))
    return first, class_of, of_class, choice


def _classes_of_rows(mem_bytes: Sequence[Ints], time_ns: Sequence[Ints], others: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Return the first of each kind of equal rows, in the rows' ascending order, and the kind of each row."""
    n_rows, n_targets = mem_bytes[0].shape
    # Of non-negative numbers, most significant byte first, the order of the rows is that of their bytes.
    costs = np.empty((n_rows, n_targets, len(mem_bytes), 2), ">i8")
    for number, (mem, time) in enumerate(zip(mem_bytes, time_ns, strict=True)):
        costs[:, :, number, 0], costs[:, :, number, 1] = mem, time
    rows = np.concatenate([costs.reshape(n_rows, -1), *others], axis=1, dtype=">i8")
    keys = [row.tobytes() for row in rows]
    first: dict[bytes, int] = {}
    for state, key in enumerate(keys):
        first.setdefault(key, state)
    ordered = sorted(first)
    kind = {key: number for number, key in enumerate(ordered)}
    return np.array([first[key] for key in ordered], np.int64), np.array([kind[key] for key in keys], np.int64)


def _dominated(mem_bytes: Sequence[Ints], time_ns: Sequence[Ints]) -> np.ndarray:
    """Return for each row the choices that another is nowhere worse than, bool[rows, C]; of equal ones the first stays."""

    def is_as_good(one: int, other: int) -> np.ndarray:
        return np.asarray(((mem_bytes[one] <= mem_bytes[other]) & (time_ns[one] <= time_ns[other])).all(axis=1))

    n_choices = len(mem_bytes)
    as_good = {(i, j): is_as_good(i, j) for i in range(n_choices) for j in range(n_choices) if i != j}
    dominated = np.zeros((len(mem_bytes[0]), n_choices), bool)
    for (i, j), better_or_equal in as_good.items():
        dominated[:, j] |= better_or_equal if i < j else better_or_equal & ~as_good[j, i]
    return dominated
