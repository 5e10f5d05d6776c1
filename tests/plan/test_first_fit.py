"""Finding what fits by looking at few points: exactly where there are few, and never worse than what was looked at."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tensoropt.plan.first_fit import ALL_AT_ONCE, FINE_GRID, GRID, first_that_fits, grid, least_of
from tensoropt.plan.frontier import PlanFrontier

few = st.lists(st.integers(0, 20), min_size=1, max_size=ALL_AT_ONCE)
many = st.lists(st.integers(0, 50), min_size=ALL_AT_ONCE + 1, max_size=2000)


@given(few, st.integers(-1, 21))
def test_of_few_points_the_answers_are_exact(needs: list[int], limit: int) -> None:
    expected = next((point for point, need in enumerate(needs) if need <= limit), None)
    assert first_that_fits(range(len(needs)), lambda point: needs[point] <= limit) == expected
    assert needs[least_of(range(len(needs)), needs.__getitem__)] == min(needs)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=3000).map(lambda needs: sorted(needs, reverse=True)),
       st.integers(-1, 51))  # fmt: skip
def test_where_what_points_need_falls_the_answers_are_exact(needs: list[int], limit: int) -> None:
    expected = next((point for point, need in enumerate(needs) if need <= limit), None)
    assert first_that_fits(range(len(needs)), lambda point: needs[point] <= limit) == expected
    assert needs[least_of(range(len(needs)), needs.__getitem__)] == needs[-1]


@given(many, st.integers(-1, 51))
def test_of_many_points_none_that_was_looked_at_is_better(needs: list[int], limit: int) -> None:
    looked: list[int] = []

    def fits(point: int) -> bool:
        looked.append(point)
        return needs[point] <= limit

    found = first_that_fits(range(len(needs)), fits)
    assert found == min((point for point in looked if needs[point] <= limit), default=None)
    assert len(looked) == len(set(looked)) <= ALL_AT_ONCE + 2 * GRID
    asked: set[int] = set()
    least = least_of(range(len(needs)), lambda point: asked.add(point) or needs[point])
    assert needs[least] == min(needs[point] for point in asked)
    assert len(asked) <= 2 * ALL_AT_ONCE + 2 * FINE_GRID


class Drawn(PlanFrontier):
    """A frontier of which each point needs a given amount of memory."""

    mesh = hardware_name = costs = None
    summary = plan = save = report_rows = report_value = None

    def __init__(self, needs: list[int]) -> None:
        self.needs = needs
        self._by_time = list(range(len(needs)))

    def __len__(self) -> int:
        return len(self.needs)

    def peak_bytes(self, point: int) -> int:
        return self.needs[point]


def test_what_a_refusal_says_is_the_least_fits() -> None:
    """A point that needs less than all others is found for a limit wherever it is found for the message."""
    for place in range(200):
        needs = [100] * 200
        needs[place] = 1
        frontier = Drawn(needs)
        least = needs[frontier.least_point()]
        fits = frontier.fastest_within(least)
        assert fits is not None and needs[fits] <= least, f"point {place}"
        assert frontier.fastest_within(0) is None


@given(st.integers(1, 5000))
def test_a_grid_goes_from_end_to_end(n_places: int) -> None:
    places = grid(n_places)
    assert places == sorted(set(places)) and (places[0], places[-1]) == (0, n_places - 1)
    assert len(places) == n_places if n_places <= ALL_AT_ONCE else len(places) == GRID
