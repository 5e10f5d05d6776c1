"""Merging the candidates of arcs against all sums reduced one target at a time."""

from __future__ import annotations

import numpy as np
import pytest

from tensoropt.ft import INFEASIBLE
from tensoropt.ft.pareto import product, reduce_unsorted
from tensoropt.ft.tables import contract
from tensoropt.ft.tables.table import Table

from .test_guided import table_of


def table(rng: np.random.Generator, n_cells: int, limit: int, longest: int) -> Table:
    return table_of([rng.integers(0, limit, (int(rng.integers(1, longest + 1)), 2)) for _ in range(n_cells)])


@pytest.mark.parametrize("limit", [3, 20, 1000, 10**9, 1 << 54])
@pytest.mark.parametrize("longest", [1, 5, 120])
def test_merged_arcs_are_all_sums_reduced(limit: int, longest: int) -> None:
    rng = np.random.default_rng([limit, longest])
    for _ in range(8):
        a, b = table(rng, 8, limit, longest), table(rng, 8, limit, int(rng.choice([1, longest])))
        n_arcs = int(rng.integers(1, 60))
        (of_a, of_b), target = rng.integers(0, 8, (2, n_arcs)), np.sort(rng.integers(0, 6, n_arcs))
        counts = np.diff(a.offsets)[of_a], np.diff(b.offsets)[of_b]
        got = contract.merge(a, b, target, np.stack([a.offsets[of_a], counts[0], b.offsets[of_b], counts[1]]))
        assert (a.mem[got.a_point] + b.mem[got.b_point] == got.mem).all()
        assert (a.time[got.a_point] + b.time[got.b_point] == got.time).all()
        expected = []
        for wanted in np.unique(target):
            sums = []
            for i, j in zip(of_a[target == wanted], of_b[target == wanted], strict=True):
                p, q = slice(*a.offsets[i : i + 2]), slice(*b.offsets[j : j + 2])
                sums.append(product(a.mem[p], a.time[p], b.mem[q], b.time[q])[:2])
            mem, time = (np.concatenate(part) for part in zip(*sums, strict=True))
            allowed = (mem < INFEASIBLE) & (time < INFEASIBLE)
            mem, time = mem[allowed], time[allowed]
            expected += [(wanted, mem[k], time[k]) for k in reduce_unsorted(mem, time)]
        assert list(zip(got.target, got.mem, got.time, strict=True)) == expected
