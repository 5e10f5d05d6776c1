"""States of a node that stands for an edge with choices: what is left out is dominated."""

from __future__ import annotations

import numpy as np
import pytest

from tensoropt.ft.edge_choices import choice_states
from tensoropt.ft.pareto import reduce_unsorted


@pytest.mark.parametrize("seed", range(20))
def test_no_cost_that_matters_is_left_out(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_source, n_target, n_choices = rng.integers(1, 6, 3)
    costs = rng.integers(0, 3, (2, n_source, n_target, n_choices))
    costs = costs[:, rng.integers(0, n_source, n_source)]  # some states are alike
    beside = rng.integers(0, 2, (n_source, 1))
    by_choice = np.moveaxis(costs, 3, 1)
    first, class_of, of_class, choice = choice_states(*by_choice, [beside])
    rows = [(*costs[:, state].transpose(1, 2, 0).ravel().tolist(), *beside[state].tolist()) for state in range(n_source)]
    assert [rows[state] for state in first.tolist()] == sorted(set(rows))
    for source in range(n_source):
        alike = class_of == class_of[source]
        assert (costs[:, alike] == costs[:, [source]]).all() and (beside[alike] == beside[source]).all()
        kept = choice[of_class == class_of[source]]
        for target in range(n_target):
            mem, time = costs[:, source, target]
            points = [set(zip(m[r].tolist(), t[r].tolist(), strict=True))
                      for m, t in ((mem, time), (mem[kept], time[kept])) for r in [reduce_unsorted(m, t)]]
            assert points[0] == points[1]
    assert len(set(zip(of_class.tolist(), choice.tolist(), strict=True))) == len(choice) <= len(set(class_of)) * n_choices
