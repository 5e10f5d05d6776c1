"""Parts of costs for which the cheapest strategy is as dear as can be: against HiGHS."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.large import first
from scipy.optimize import linprog

from tensoropt.ft.nonadditive.matrix_game import best_parts


def value(costs: np.ndarray) -> float:
    """The largest cost of the cheapest strategy, by HiGHS."""
    n_costs, n_strategies = costs.shape
    found = linprog(
        np.append(np.zeros(n_costs), -1.0),
        A_ub=np.column_stack([-costs.T, np.ones(n_strategies)]), b_ub=np.zeros(n_strategies),
        A_eq=np.append(np.ones(n_costs), 0.0)[None], b_eq=[1.0],
        bounds=[(0, None)] * n_costs + [(None, None)],
    )  # fmt: skip
    return float(found.x[-1])


@pytest.mark.parametrize("seed", first(50, range(150)))
def test_no_parts_are_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = int(rng.integers(1, 9)), int(rng.integers(1, (4, 40, 200)[seed % 3]))
    costs = rng.random(shape) * rng.choice([1e-3, 1.0, 50.0], (shape[0], 1))
    costs = np.round(costs, 1) if seed % 4 == 0 else costs  # ties and zeros
    costs[:, 0] = costs[:, -1]
    if seed % 50 == 1:
        costs[:] = 0.0
    if seed % 5 == 0:
        costs[0] = 0.0  # as of a corner without a limit
    parts, least = best_parts(costs)
    assert (parts >= 0).all() and abs(parts.sum() - 1) < 1e-9
    assert least == (parts @ costs).min()
    assert abs(least - value(costs)) < 1e-7 * max(1.0, costs.max())
