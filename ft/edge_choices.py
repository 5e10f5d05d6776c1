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

import numpy as np

from .problem import Ints


def choice_states(mem_bytes: Ints, time_ns: Ints, others: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the (class of source states, choice) pairs that may matter.

    Args:
        mem_bytes, time_ns: int64[K of source, K of target, C].
        others: int64[K of source, K of target], something else that must be equal for the states of one class.

    Returns:
        The class of each source state, then the class and the choice of each pair.
    """
    costs = np.stack([mem_bytes, time_ns], axis=-1)
    n_source, n_choices = costs.shape[0], costs.shape[2]
    flat = costs.reshape(n_source, -1)
    rows, class_of = np.unique(np.concatenate([flat, others], axis=1), axis=0, return_inverse=True)
    of_choices = rows[:, : flat.shape[1]].reshape(len(rows), costs.shape[1], n_choices, 2)
    by_choice = of_choices.transpose(0, 2, 1, 3).reshape(len(rows), n_choices, -1)
    of_class, choice = [], []
    for index, options in enumerate(by_choice):
        as_good = (options[:, None] <= options[None]).all(axis=2)  # [i, j]: i is nowhere worse than j
        first_of_equals = as_good & (~as_good.T | np.tri(n_choices, k=-1, dtype=bool).T)
        np.fill_diagonal(first_of_equals, False)
        kept = np.flatnonzero(~first_of_equals.any(axis=0))
        of_class += [index] * len(kept)
        choice += kept.tolist()
    return class_of.reshape(-1).astype(np.int64), np.array(of_class, np.int64), np.array(choice, np.int64)
