"""A search without rematerialization and one with it share the gap and the seconds that are asked for."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from helpers.searches import find_frontier
from remat.small import HARDWARE, SMALL

from tensoropt.ft import Budget, Frontier, LowerBound
from tensoropt.ft.nonadditive.local_search import Descent
from tensoropt.ft.nonadditive.relaxations import Relaxations
from tensoropt.search.search_problem import ProblemSearch
from tensoropt.tools.offline import record

LOOSE = 0.015  # the gap that the recorded searches leave


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Budget, float]]:
    """The budgets of all searches of a large problem, and when each began; none of them proves more than LOOSE."""
    begun: list[tuple[Budget, float]] = []
    found = ProblemSearch._found

    def recorded(self: ProblemSearch, problem, overlap, budget: Budget) -> Frontier:
        begun.append((budget, time.monotonic()))
        result = found(self, problem, overlap, replace(budget, seconds=0.0))
        below = ((cost / (1 + LOOSE)).astype(int) for cost in (result.mem_bytes, result.time_ns))
        return replace(result, bound=LowerBound(*below, "a test"))

    monkeypatch.setattr(ProblemSearch, "_found", recorded)
    monkeypatch.setattr(Relaxations, "next", lambda *_: None)  # each relaxation would be one search more
    return begun


def search(budget: Budget) -> Frontier:
    return find_frontier(record(SMALL["cnn"], "cnn").model, HARDWARE, 2, budget=budget).certified


def test_the_second_search_goes_as_near_as_the_gap_asks_while_there_is_time(searches) -> None:
    search(Budget(seconds=100.0, gap=0.001))
    assert [budget.gap for budget, _ in searches[:3]] == [0.001, 0.02, 0.001]
    searches.clear()
    search(Budget(seconds=0.0, gap=0.001))
    assert [budget.gap for budget, _ in searches] == [0.001, 0.02]
    searches.clear()
    found = search(Budget(seconds=100.0, gap=0.9))
    assert [budget.gap for budget, _ in searches] == [0.9, 0.9] and found.worst_gap <= 0.9


def test_all_searches_have_one_deadline(searches) -> None:
    began = time.monotonic()
    search(Budget(seconds=50.0, gap=0.0))
    (first, _), *others = searches
    assert first.seconds == 25.0 and len(others) >= 2
    ends = [at + budget.seconds for budget, at in others]
    assert max(ends) - min(ends) < 0.1  # each is given what is left
    # What isn't searching, as building costs, doesn't count.
    assert began + 50.0 <= min(ends) <= time.monotonic() + 50.0


def test_without_seconds_nothing_is_changed_after_the_first_results(searches, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = []
    changed = Descent._changed
    monkeypatch.setattr(Descent, "_changed", lambda self, *points: rounds.append(1) or changed(self, *points))
    search(Budget(seconds=0.0))
    assert not rounds and len(searches) == 2
    search(Budget(seconds=2.0))
    assert rounds


def test_where_nothing_follows_the_only_search_has_all_seconds(searches) -> None:
    find_frontier(record(SMALL["mlp"], "mlp").model, HARDWARE, 4, budget=Budget(seconds=9.0), without=["remat"])
    assert [budget.seconds for budget, _ in searches] == [9.0]
