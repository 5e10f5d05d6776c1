"""Numbers of micro-batches that aren't searched: no point is missed, and as many cost what was found."""

from __future__ import annotations

import math
from functools import cache

import accumulate.models as models
import numpy as np
import pytest
from helpers.large import first

from tensoropt import zoo
from tensoropt.ft import Budget
from tensoropt.plan import fewer_micro_batches
from tensoropt.plan.cuts import Cut
from tensoropt.plan.fewer_micro_batches import all_points, in_fewer, is_beaten, is_beaten_elsewhere
from tensoropt.plan.find_staged import find_with_stages
from tensoropt.plan.request import Request
from tensoropt.plan.stage_needs import StageNeeds
from tensoropt.plan.stage_times import TimesBySize
from tensoropt.plan.staged_frontier import StagedFrontier
from tensoropt.plan.submeshes import blocks_of
from tensoropt.profiling.hardware import named
from tensoropt.tools.offline import record

ZOO = (
    "gpt3:batch=32,length=4,layers=2,width=8,heads=2,vocabulary=16",
    "lenet5:batch=32",
    "rnn:batch=32,steps=3,hidden=32,layers=2,vocabulary=64",
    "transformer:batch=32,length=4,layers=2,width=16,heads=2,vocabulary=32",
)
CASES = first(0, [*ZOO, "mlp", "attention", "looking_up", "tied"])


def request(name: str) -> Request:
    """Return a request for one of the small models, by name, or for one of the zoo with sizes."""
    model = models.recorded(name, "adam").model if name in models.FUNCTIONS else record(zoo.sized(name), "", "adam").model
    return Request(model, named("v100-2x2"), None, budget=Budget(seconds=0))


@cache
def of_all_numbers(name: str) -> StagedFrontier:
    """Return a model's frontier in two stages, with all numbers of micro-batches searched."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fewer_micro_batches, "is_beaten", lambda *given: False)
        return find_with_stages(request(name), 4, (2,))


@pytest.mark.parametrize("name", CASES)
def test_no_point_is_missed_where_numbers_are_left_out(name: str) -> None:
    found, expected = find_with_stages(request(name), 4, (2,)), of_all_numbers(name)
    for point in expected.points_of:
        assert any(each.n_bytes <= point.n_bytes and each.costs_ns[0] <= point.costs_ns[0] for each in found.points_of)
    assert found.bound_us == expected.bound_us


def test_numbers_that_are_left_out_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fewer_micro_batches, "can_predict", bool)
    monkeypatch.setattr(fewer_micro_batches, "is_beaten", lambda *given: True)
    found = find_with_stages(request("mlp"), 4, (2,))
    assert [each.micro_batches for each in found.searched] in ([8], [8, 8])
    assert "2 stages in 2 or 4 micro-batches are predicted to be beaten by what was searched" in found.summary()


@pytest.mark.parametrize("name", ["mlp", *CASES[:-4]])
def test_as_many_micro_batches_cost_what_was_found(name: str) -> None:
    asked = request(name)
    for each in of_all_numbers(name).searched:
        times = TimesBySize(asked.model, asked.hardware, each.micro_batches)
        predicted = in_fewer(each, asked.hardware, times, each.micro_batches)
        for one, other in zip(predicted.combinations, each.combinations, strict=True):
            assert one.order == other.order and np.array_equal(one.stage_bytes, other.stage_bytes)
            assert np.array_equal(one.time_us, other.time_us)
        assert not is_beaten(predicted, each.least_us, [each])


@cache
def of_all_cuts(name: str) -> StagedFrontier:
    """Return a model's frontier in two and in four stages, with all cuts and numbers of micro-batches searched."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fewer_micro_batches, "is_beaten", lambda *given: False)
        patched.setattr(fewer_micro_batches, "is_beaten_elsewhere", lambda *given: False)
        return find_with_stages(request(name), 4, (2, 4))


@pytest.mark.parametrize("name", CASES)
def test_cuts_that_are_left_out_have_no_minimal_point(name: str) -> None:
    found, expected = find_with_stages(request(name), 4, (2, 4)), of_all_cuts(name)
    of_found, found_us = all_points(found.searched)
    for n_bytes, time_us in zip(*all_points(expected.searched), strict=True):
        assert ((of_found <= n_bytes) & (found_us <= time_us)).any()
    assert found.bound_us == expected.bound_us


def test_a_cut_is_left_out_only_if_found_points_need_no_more_than_it_in_time_and_memory() -> None:
    asked = request("mlp")
    found = of_all_numbers("mlp").searched
    first_found = found[0]
    sizes = [frontier.mesh.n_devices for frontier in first_found.frontiers]
    by_size = TimesBySize(asked.model, asked.hardware, first_found.micro_batches)
    times, needs = by_size.of(sizes), StageNeeds.of(by_size, sorted(set(sizes)))
    mem_bytes, time_us = all_points(found)
    within = time_us[mem_bytes <= all_points([first_found])[0].min()].min()
    for cut_us, expected in ((within, True), (0.999 * within, False), (math.inf, True)):
        cut = Cut(first_found.stages, blocks_of(sizes), cut_us, needs=needs)
        assert is_beaten_elsewhere(cut, asked.hardware, times, None, found) == expected
    assert not is_beaten_elsewhere(cut, asked.hardware, times, None, [])
    # Nothing that was found needs as little as half the memory.
    halves = Cut(first_found.stages, blocks_of([2 * size for size in sizes]), math.inf, needs=needs)
    assert not is_beaten_elsewhere(halves, asked.hardware, times, None, [first_found])
