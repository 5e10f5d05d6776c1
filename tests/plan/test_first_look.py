"""What is known of a limit before a search: bounds that no plan is below, and plans that fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers import zoo as small
from helpers.large import first
from helpers.searches import fastest_that_fits

from tensoropt.profiling.hardware import named
from tensoropt.search import first_look as looks
from tensoropt.search.first_look import first_look, held_anyway
from tensoropt.search.frontiers.find_frontier import searched
from tensoropt.search.options import mini_time, profiling
from tensoropt.search.request import ONCE, Request
from tensoropt.tools.offline import record


@pytest.mark.parametrize("name", first(2, ["mlp", "cnn", "attention"]))
def test_no_plan_is_below_the_bound_and_each_plan_looked_at_fits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "LARGE", 0)
    monkeypatch.setattr(looks, "MANY_AXES", 1)
    model = record(lambda: getattr(small, name)().loss, name, "adam").model
    said: list[str] = []
    request = Request(model, named("v100-2x2"), 1, budget=ONCE, tell=said.append)
    counts = request.micro_batches_to_look_at(4)
    whole = [searched(replace(request, micro_batches=n), 4) for n in (counts[0], counts[-1])]
    held, peaks = held_anyway(request, whole), []
    for bound, n, found in zip(held, (counts[0], counts[-1]), whole, strict=False):
        peaks += [found.peak(point).n_bytes for point in range(len(found))]
        assert bound.micro_batches == n and bound.kept > 0 and bound.n_bytes <= min(peaks[-len(found):])

    best, tried = fastest_that_fits(replace(request, limit_bytes=min(each.n_bytes for each in held) - 1), 4)
    assert best is None and all(each.found.algorithm == "look" for each in tried)
    assert said[-1].startswith("no, not on 4 devices within ") and "what the backward pass reads" in said[-1]

    look = first_look(replace(request, limit_bytes=max(peaks)), 4)
    frontier, point = look.best
    needed = frontier.peak_bytes(point)
    asked = replace(request, limit_bytes=needed)
    assert fastest_that_fits(asked, 4)[0] is not None and said[-1].startswith("yes, on 4 devices within ")
    # A search that finds nothing leaves the plan that was looked at.
    monkeypatch.setattr("tensoropt.search.candidates.search_candidates.by_bound", lambda *_: None)
    plan = mini_time(asked, 4)
    assert plan.peak_bytes == needed and plan.time_us == frontier.points[point].time_us
    rows: list[int] = []
    profiling([(replace(asked, tell=None), 4)], lambda of_one: rows.append(of_one.points[0].parallelism))
    assert rows == [4]
