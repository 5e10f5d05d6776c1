"""With more choices no point gets worse, and a small model's frontier is exact whichever choices there are."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, combinations
from typing import Any

import numpy as np
import pytest
from remat.small import HARDWARE
from zoo.small import SMALL

from tensoropt import zoo
from tensoropt.ft import Budget, Frontier
from tensoropt.plan.find_frontier import find_frontier
from tensoropt.search import search_problem
from tensoropt.search.problem.choices import REMAT, REUSE, ZERO
from tensoropt.tools.offline import record

ALL = frozenset({REUSE, REMAT, ZERO})


def frontiers(make: Callable[[], Any], budget: Budget, n_devices: int = 4) -> dict[frozenset[str], Frontier]:
    """The frontier with each set of choices."""
    model = record(make, "small").model
    sets = [frozenset(each) for each in chain(*(combinations(sorted(ALL), n) for n in range(len(ALL) + 1)))]
    found = {chosen: find_frontier(model, HARDWARE, n_devices, budget=budget, without=ALL - chosen) for chosen in sets}
    return {chosen: frontier.certified for chosen, frontier in found.items()}


def above(one: Frontier, other: Frontier) -> np.ndarray:
    """The points of the one frontier that no point of the other equals or beats."""
    as_good = (other.mem_bytes <= one.mem_bytes[:, None]) & (other.time_ns <= one.time_ns[:, None])
    return np.flatnonzero(~as_good.any(axis=1))


def test_no_point_is_above_one_with_fewer_choices() -> None:
    found = frontiers(zoo.lenet5, Budget(seconds=0.0), n_devices=2)
    for more, frontier in found.items():
        assert frontier.exact, (sorted(more), frontier.certificate)
        for fewer in found:
            if fewer < more:
                assert not len(above(found[fewer], frontier)), (sorted(fewer), sorted(more))


@pytest.mark.large
@pytest.mark.parametrize("name", ["alexnet", "vgg16", "rnn", "transformer", "wide_resnet", "bert_large", "inception_v3"])
@pytest.mark.parametrize("seconds", [0.0, 2.0])
def test_a_point_is_above_one_with_fewer_choices_by_the_gap_at_most(name: str, seconds: float) -> None:
    """A search that isn't exact may miss a strategy by its gap, and its bound holds for what fewer choices give."""
    found = frontiers(lambda: zoo.find(name)(**SMALL[name]), Budget(seconds=seconds, gap=0.01))
    for more, frontier in found.items():
        for fewer, other in ((fewer, other) for fewer, other in found.items() if fewer < more):
            factor = (1 + frontier.worst_gap) * (1 + 1e-9)
            as_near = (frontier.mem_bytes <= factor * other.mem_bytes[:, None]) & (
                frontier.time_ns <= factor * other.time_ns[:, None]
            )
            assert as_near.any(axis=1).all(), (sorted(fewer), sorted(more))
            bound = frontier if frontier.bound is None else frontier.bound
            as_low = (bound.mem_bytes <= other.mem_bytes[:, None]) & (bound.time_ns <= other.time_ns[:, None])
            assert as_low.any(axis=1).all(), (sorted(fewer), sorted(more))
            if not seconds and fewer == more - {REMAT}:  # it begins with what the search without finds
                assert not len(above(other, frontier)), (sorted(fewer), sorted(more))


def test_the_exact_frontier_is_not_above_the_one_of_charged_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    model = record(zoo.lenet5, "lenet5").model
    exact = find_frontier(model, HARDWARE, 4, budget=Budget(seconds=0.0)).certified
    monkeypatch.setattr(search_problem, "frontier_within", lambda *_: None)
    charged = find_frontier(model, HARDWARE, 4, budget=Budget(seconds=0.0)).certified
    assert exact.exact
    assert not len(above(charged, exact))
    bound = charged.bound
    assert bound is not None, "a maximum over segments is no sum"
    as_low = (bound.mem_bytes <= exact.mem_bytes[:, None]) & (bound.time_ns <= exact.time_ns[:, None])
    assert as_low.any(axis=1).all()  # the other search's bound holds for all of it


def test_a_search_at_once_finds_what_one_after_a_search_without_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    model = record(zoo.lenet5, "lenet5").model
    at_once = find_frontier(model, HARDWARE, 4, budget=Budget(seconds=0.0))
    monkeypatch.setattr("tensoropt.plan.find_frontier.FEW_CONFIGS", 0)
    after = find_frontier(model, HARDWARE, 4, budget=Budget(seconds=0.0))
    assert at_once.certified.exact and after.certified.exact
    np.testing.assert_array_equal(at_once.certified.mem_bytes, after.certified.mem_bytes)
    np.testing.assert_array_equal(at_once.certified.time_ns, after.certified.time_ns)
    # Of equal costs each search keeps some strategy; those of least peaks are as good.
    np.testing.assert_array_equal(at_once.all_peaks, after.all_peaks)
