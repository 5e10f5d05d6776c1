"""Numbers of micro-batches that aren't searched: no point is missed, and as many cost what was found."""

from __future__ import annotations

import math
from functools import cache

import accumulate.models as models
import numpy as np
import pytest
from helpers.large import first
from helpers.searches import find_with_stages

from tensoropt import zoo
from tensoropt.ft import Budget
from tensoropt.plan.frontier import Frontier
from tensoropt.profiling.hardware import named
from tensoropt.search.candidates import bounds as candidate_bounds
from tensoropt.search.candidates import by_bound
from tensoropt.search.candidates.bounds import Corners, bound_of_cut, points_of
from tensoropt.search.candidates.candidate import Candidate, Cutting, least_bytes
from tensoropt.search.request import Request
from tensoropt.search.stages.cuts import Cut
from tensoropt.search.stages.needs import StageNeeds
from tensoropt.search.stages.placement import blocks_of
from tensoropt.search.stages.points import SearchedStages
from tensoropt.tools.offline import record

ZOO = (
    "gpt3:batch=32,length=4,layers=2,width=8,heads=2,vocabulary=16",
    "lenet5:batch=32",
    "rnn:batch=32,steps=3,hidden=32,layers=2,vocabulary=64",
    "transformer:batch=32,length=4,layers=2,width=16,heads=2,vocabulary=32",
)
NOTHING = Corners(np.zeros(1), np.zeros(1))
CASES = first(0, [*ZOO, "mlp", "attention", "looking_up", "tied"])


@pytest.fixture(autouse=True)
def _as_of_large_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidate_bounds, "SMALL", 0)


def request(name: str) -> Request:
    """Return a request for one of the small models, by name, or for one of the zoo with sizes."""
    model = models.recorded(name, "adam").model if name in models.FUNCTIONS else record(zoo.sized(name), "", "adam").model
    return Request(model, named("v100-2x2"), None, budget=Budget(seconds=0))


@cache
def of_all(name: str, counts: tuple[int, ...]) -> Frontier:
    """Return a model's frontier in these numbers of stages, with all cuts and numbers of micro-batches searched."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(by_bound, "bound_of_cut", lambda *given: NOTHING)
        return find_with_stages(request(name), 4, counts)


@pytest.mark.parametrize("counts", [(2,), (2, 4)])
@pytest.mark.parametrize("name", CASES)
def test_numbers_and_cuts_that_are_left_out_have_no_minimal_point(name: str, counts: tuple[int, ...]) -> None:
    found, expected = find_with_stages(request(name), 4, counts), of_all(name, counts)
    assert points_of(expected.searched).are_beaten(points_of(found.searched))
    for point in expected.points_of:
        assert any(each.peak_bytes <= point.peak_bytes and each.time_us <= point.time_us for each in found.points_of)
    assert found.bound.time_ns[0] / 1e3 == expected.bound.time_ns[0] / 1e3


def test_numbers_that_are_left_out_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidate_bounds, "can_predict", bool)
    monkeypatch.setattr(Corners, "are_beaten", lambda *given: bool(len(given[1].mem_bytes)))
    found = find_with_stages(request("mlp"), 4, (2,))
    (n,) = {each.micro_batches for each in found.searched}
    others = " or ".join(str(each) for each in (2, 4, 8) if each != n)
    assert f"2 stages in {others} micro-batches are predicted to be beaten by what was searched" in found.summary()


def test_a_cut_is_left_out_only_if_found_points_need_no_more_than_it_in_time_and_memory() -> None:
    found = of_all("mlp", (2,)).searched
    first_found = found[0]
    sizes, n = [frontier.mesh.n_devices for frontier in first_found.frontiers], first_found.micro_batches
    cutting = Cutting(request("mlp"), {}, 4, None)
    needs = StageNeeds.of(cutting.times(n), sorted(set(sizes)))
    same = [first_found]

    def bound(cut_us: float, sizes: list[int], compared: list[SearchedStages]) -> Corners:
        cut = Cut(first_found.stages, blocks_of(sizes), cut_us, needs=needs)
        n_bytes = max(least_bytes(cut.stages, needs, sizes, n))
        return bound_of_cut(Candidate(2, n, None, cut, cut_us, n_bytes), cutting, compared)

    mem_bytes, time_us = points_of(same)
    within = time_us[mem_bytes <= points_of([first_found]).mem_bytes.min()].min()
    for cut_us, expected in ((within, True), (0.999 * within, False), (math.inf, True)):
        assert bound(cut_us, sizes, same).are_beaten(points_of(same)) == expected
    assert not bound(math.inf, sizes, []).are_beaten(points_of([]))
    # Nothing that was found needs as little as half the memory.
    halves = bound(math.inf, [2 * size for size in sizes], [first_found])
    assert not halves.are_beaten(points_of([first_found]))


def test_corners_are_beaten_by_points_that_need_no_more() -> None:
    corners = Corners(np.array([4.0, 8.0]), np.array([9.0, 5.0]))
    for points, expected in (
        (([4, 8], [9, 5]), True), (([8, 3], [5, 9]), True), (([3], [5]), True), (([4, 8], [9, 6]), False),
        (([5], [1]), False), (([], []), False),
    ):  # fmt: skip
        assert corners.are_beaten(Corners(*map(np.array, points))) == expected
    assert Corners(np.zeros(0), np.zeros(0)).are_beaten(corners)
    assert corners.within(7).mem_bytes.tolist() == [4.0]
