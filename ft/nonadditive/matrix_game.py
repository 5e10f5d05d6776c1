"""Find the parts, which add up to 1, of some costs for which the cheapest of some strategies is as dear as can be.

That is the matrix game  max over parts  min over strategies  parts x costs,  and a linear program: where all costs are
positive, its value is 1 / max sum(y) for y >= 0 with costs x y <= 1, and the prices of these constraints are the parts.
There are few constraints and y = 0 is allowed, so that the simplex method in its simplest form does it, with a tableau of a
row for each cost.

Complexity: O(costs x strategies) for each step, of which there are about as many as costs.
"""

from __future__ import annotations

import numpy as np

from ..problem import Floats

LEAST = 1e-9
"""Costs count as at least this, so that the value is positive."""
MOST_STEPS = 200
"""Steps after which the parts found by then are taken: rounding may keep it from an end."""
_NOTHING = 1e-12


def best_parts(costs: Floats) -> tuple[Floats, float]:
    """Return the parts, float64[N], and the cost of the cheapest strategy.

    Args:
        costs: float64[N, P], of P >= 1 strategies; none is negative.
    """
    n_costs, n_strategies = costs.shape
    # The rows of the constraints, and that of the reduced costs. Columns: strategies, slacks, the right side.
    tableau = np.zeros((n_costs + 1, n_strategies + n_costs + 1))
    tableau[:-1, :n_strategies] = np.maximum(costs, LEAST)
    tableau[:-1, n_strategies:-1] = np.eye(n_costs)
    tableau[:-1, -1] = 1.0
    tableau[-1, :n_strategies] = -1.0
    for _ in range(MOST_STEPS):
        column = int(tableau[-1, :-1].argmin())
        if tableau[-1, column] >= -_NOTHING:
            break
        entries = tableau[:-1, column]
        ratios = np.full(n_costs, np.inf)
        np.divide(tableau[:-1, -1], entries, out=ratios, where=entries > _NOTHING)
        row = int(ratios.argmin())
        tableau[row] /= tableau[row, column]
        factors = tableau[:, column].copy()
        factors[row] = 0.0
        tableau -= factors[:, None] * tableau[row]
    prices = np.maximum(tableau[-1, n_strategies:-1], 0.0)
    parts: Floats = prices / prices.sum()
    return parts, float((parts @ costs).min())
