"""Stages that nobody asked for: between machines where they are predicted to pay, told, and elsewhere not looked for."""

from __future__ import annotations

import itertools
import json
import random
import re
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from helpers import zoo
from helpers.large import first
from helpers.searches import find_with_stages
from helpers.worker_functions import without_tensorflow
from pipeline.staged import check_losses, layers

from tensoropt.common.process.workers import Calls
from tensoropt.ft import Budget
from tensoropt.plan.frontier import Frontier
from tensoropt.plan.plan import Plan
from tensoropt.profiling.hardware import Origin, named
from tensoropt.search.candidates import by_bound
from tensoropt.search.candidates.candidate import Cutting
from tensoropt.search.options import find_answer, mini_time, profiling
from tensoropt.search.request import WORTH_STAGES, WORTH_TRYING, Request
from tensoropt.search.search_problem import ProblemSearch
from tensoropt.tools.cli.main import main

MODEL = """
import tensoropt

def layers():
    hidden = tensoropt.placeholder(tensoropt.float64, [256, 256])
    for layer in range(6):
        weights = tensoropt.get_variable(f"w{layer}", [256, 256], tensoropt.float64)
        hidden = tensoropt.tanh(tensoropt.matmul(hidden, weights))
    return tensoropt.reduce_mean(tensoropt.square(hidden - 1.0))
"""


@cache
def recorded() -> zoo.Recorded:
    return zoo.record(partial(layers, 256, 256, n=6), "adam")


def request(cluster: str = "v100-2x1", **changed: object) -> Request:
    asked = Request(recorded().model, named(cluster), None, budget=Budget(seconds=0), may_take_stages=True)
    return replace(asked, **changed)  # type: ignore[arg-type]


@cache
def found() -> Plan:
    return mini_time(request(), 2)


@cache
def found_with_stages(counts: tuple[int, ...] | None) -> Frontier:
    return find_with_stages(request(), 2, counts)


def test_stages_are_taken_where_they_pay_and_say_why() -> None:
    alone, plan = mini_time(request(may_take_stages=False), 2), found()
    assert plan.time_us <= (1 - WORTH_STAGES) * alone.time_us
    assert "2 stages are predicted to take" in plan.why_stages and plan.why_stages in plan.brief()
    assert plan.why_stages in plan.frontier.summary()
    assert plan.time_us <= 1.02 * found_with_stages((1, 2)).points_of[-1].time_us
    check_losses(plan, recorded())


def test_all_options_take_them_and_without_a_frontier_the_same_plan_is_found() -> None:
    plan, lean = found(), mini_time(request(wants_frontier=False), 2)
    assert lean.to_json()["stages"] == plan.to_json()["stages"]
    fewest = find_answer("mini_parallelism", request(), [2])
    assert fewest.time_us == plan.time_us
    point, two = profiling([(request(), count) for count in (1, 2)]).points
    assert (point.stages, two.stages) == (1, 2) and two.time_us == pytest.approx(plan.time_us, rel=0.02)


def test_a_curve_is_the_same_with_any_number_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensoropt.search.options.WORTH_WORKERS", 1)
    found, said, rows = [], set(), []
    for n in ("1", "2"):
        monkeypatch.setenv("TENSOROPT_WORKERS", n)
        asked = request(progress=lambda phase, *_: said.add(phase))
        found.append(profiling([(asked, 2), (asked, 1)], lambda of_one: rows.append(of_one.points[0].parallelism)))
    assert found[0].points == found[1].points and rows[:2] == [2, 1] and sorted(rows[2:]) == [1, 2]
    assert any(phase.startswith("on 2 devices, ") for phase in said)


@pytest.mark.parametrize("counts", first(1, [(1, 2), None]), ids=["asked for", "unasked"])
def test_plans_are_the_same_where_a_worker_searches_all_stages(
    counts: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = found_with_stages(counts)
    monkeypatch.setattr("tensoropt.search.candidates.search_cut.WORTH_WORKERS", 1)
    added = Calls.add
    monkeypatch.setattr(Calls, "_make", lambda *given: False)  # this process would be faster than its start
    monkeypatch.setenv("TENSOROPT_WORKERS", "2")
    calls = []

    def add(of: Calls, key: Any, function: Any, arguments: tuple[Any, ...]) -> None:
        calls.append(key)
        added(of, key, without_tensorflow, (function, *arguments))

    monkeypatch.setattr(Calls, "add", add)
    apart = find_with_stages(request(), 2, counts)
    assert calls and [apart.plan(n).to_json() for n in range(len(apart))] == [own.plan(n).to_json() for n in range(len(own))]


class CallsInDrawnOrder(Calls):
    """Calls that this process makes: some of those that wait, in a drawn order, before that whose result is asked for."""

    draw = random.Random(0)

    def __init__(self, n: int, *given: Any) -> None:
        super().__init__(0, *given)

    def result(self, key: Any) -> Any:
        for other in self.draw.sample(list(self._waiting), self.draw.randint(0, len(self._waiting))):
            self._make(other)
        return super().result(key)


@pytest.mark.parametrize(
    ("counts", "seconds"),
    [((1, 2, 4), 0.0), (None, 0.0), ((1, 2, 4), 160.0)],
    ids=["asked for", "unasked", "within seconds"],
)
def test_plans_are_the_same_in_whatever_order_workers_end(
    counts: tuple[int, ...] | None, seconds: float, monkeypatch: pytest.MonkeyPatch, everything: bool
) -> None:
    """Each search has its share of the seconds for itself: searches at the same time take no points and no gaps from it."""
    ticks = itertools.count()
    monkeypatch.setattr("time.monotonic", lambda: next(ticks) / 64)  # a search takes as long whenever it is made
    unrefined = Budget(seconds=0, max_work=0, max_points=20)
    asked = request("v100-4x1", budget=replace(unrefined, seconds=seconds))
    own = find_with_stages(asked, 4, counts)
    if seconds:
        assert own.gaps.tolist() != find_with_stages(replace(asked, budget=unrefined), 4, counts).gaps.tolist()
    monkeypatch.setattr("tensoropt.search.candidates.search_cut.WORTH_WORKERS", 1)
    monkeypatch.setattr("tensoropt.search.candidates.search_cut.Calls", CallsInDrawnOrder)
    monkeypatch.setenv("TENSOROPT_WORKERS", "8")
    for seed in range(4 if everything else 1):
        CallsInDrawnOrder.draw.seed(seed)
        found = find_with_stages(asked, 4, counts)
        assert CallsInDrawnOrder.draw.getstate() != random.Random(seed).getstate()  # something was asked for
        assert [found.plan(n).to_json() for n in range(len(found))] == [own.plan(n).to_json() for n in range(len(own))]
        assert found.gaps.tolist() == own.gaps.tolist()


def test_a_memory_limit_holds_for_them() -> None:
    limited = mini_time(request(limit_bytes=found().peak_bytes - 1), 2)
    assert limited.peak_bytes < found().peak_bytes and limited.time_us > found().time_us


@pytest.mark.parametrize(
    ("changed", "n_devices"),
    [({"hardware": named("v100-1x4")}, 4), ({"hardware": named("v100-2x4")}, 4),
     ({"without": frozenset({"stages"})}, 2), ({"algorithm": "data-parallel"}, 2),
     ({"may_take_stages": False}, 2)],
    ids=["one machine", "devices of one machine", "without stages", "another algorithm", "not allowed"],
)  # fmt: skip
def test_nothing_is_looked_for_where_they_cannot_pay(
    changed: dict[str, object], n_devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cutting, "bounded", _never)
    monkeypatch.setattr(by_bound, "search_cut", _never)
    assert len(mini_time(request(**changed), n_devices).stages) == 1


def test_on_measured_hardware_they_are_tried_or_told() -> None:
    measured = Origin("2026-11-27", "2.21.0", 1)
    hardware = replace(named("v100-2x1"), measured=measured, exposed_share=0.001)
    told = mini_time(request(hardware=hardware), 2)
    assert "2 stages may take" in told.hint and f"note: {told.hint}" in told.brief()
    tried = mini_time(request(hardware=hardware, worth_stages=WORTH_TRYING, searches_micro_batches=False), 2)
    assert tried.micro_batches > 1
    assert tried.frontier.fastest_without_stages(None) is not None


def test_a_comparison_has_a_row_for_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    file = tmp_path / "compared.json"
    where = ("--optimizer", "adam", "--cluster", "v100-2x1", "--seconds", "0", "--json", str(file))
    assert main(["compare", f"{tmp_path / 'model.py'}:layers", *where]) == 0
    (row,) = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("stages ")]
    staged = json.loads(file.read_text())["stages"]
    assert row[3] == f"{staged['time_us']:,.1f}" and row[4] == f"{staged['above']:+.2%}" and staged["above"] < -WORTH_STAGES


def test_ctrl_c_leaves_what_was_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    command = ["search", f"{tmp_path / 'model.py'}:layers", "--optimizer", "adam", "--cluster", "v100-2x1", "--seconds", "0"]
    kept = "search interrupted; this is the best that it had found"
    of_search = (ProblemSearch, "with_rematerialization", True), (ProblemSearch, "plain", False)
    for owner, name, is_kept in ((by_bound, "search_cut", True), *of_search):
        monkeypatch.setattr(owner, name, _interrupted)
        assert main(command) == 130
        printed = capsys.readouterr()
        assert (kept in printed.err) == ("us per step" in printed.out) == is_kept
        with pytest.raises(KeyboardInterrupt):
            mini_time(request(), 2)


def test_people_who_wait_see_what_is_found() -> None:
    said: dict[str, None] = {}
    mini_time(request(progress=lambda phase, *_: said.setdefault(phase)), 2)
    first, *others = said
    found = r"\d+ points?, best .* [mu]s, (gap \d+\.\d%( without stages)?, )?\d+ candidates? left; "
    told = {re.sub(found, "", each) for each in others if re.match(found, each)}
    assert first == "costs" and {"search", "in 2 stages, costs"} <= told


@pytest.mark.parametrize(("owner", "name", "worth"), [(Cutting, "bounded", 0.6), (by_bound, "search_cut", 0.2)])
def test_what_is_predicted_not_to_pay_is_not_searched(
    owner: object, name: str, worth: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is too little network for any stages, or too little is saved by the best cut."""
    monkeypatch.setattr(owner, name, _never)
    assert len(mini_time(request(worth_stages=worth), 2).stages) == 1


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def _never(*_: object) -> None:
    raise AssertionError("stages are looked for")
