"""Recognise edges whose two ends do not interact."""

from __future__ import annotations

from ..problem import INFEASIBLE, Ints


def split_sum(costs: Ints) -> tuple[Ints, Ints] | None:
    """Return ``(f, g)`` with ``costs[i, j] = f[i] + g[j]``, both non-negative; None if there is no such pair.

    There is one for every edge to a node with a single state, and for edges that are free, unless a pair of states is
    forbidden.
    """
    if int(costs.max()) >= INFEASIBLE:
        return None
    column = int(costs[0].argmin())
    of_source, of_target = costs[:, column], costs[0] - costs[0, column]
    return (of_source, of_target) if (of_source[:, None] + of_target == costs).all() else None
