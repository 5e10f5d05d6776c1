"""``tensoropt search --stages``: one frontier of plans with stages and without, and what bad input gets."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.commands import refused, said
from helpers.searches import find_frontier, find_with_stages

import tensoropt
from tensoropt.common.errors import InputError
from tensoropt.common.memory_units import memory_text
from tensoropt.ft import Budget
from tensoropt.plan.plan import Plan
from tensoropt.profiling.hardware import named
from tensoropt.report.pages.page import DATA_ID
from tensoropt.search.frontiers.find_frontier import find_baseline
from tensoropt.search.request import Request
from tensoropt.tools.cli.main import main
from tensoropt.tools.cli.searches.search_report import SearchSetup, result_text
from tensoropt.tools.offline import record_named

DEEP = f"{Path(__file__).with_name('models.py')}:deep"
SEARCH = ("search", DEEP, "--devices", "4", "--seconds", "0")


def test_one_frontier_is_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, plan_file, picture = tmp_path / "found.json", tmp_path / "plan.json", tmp_path / "found.png"
    asked = ("--stages", "1,2", "--json", str(file), "--plan", str(plan_file), "--plot", str(picture))
    assert main([*SEARCH, *asked]) == 0
    told, found = capsys.readouterr().out, json.loads(file.read_text())
    for text in ("micro-    waits ", " per device ", "chosen", "searched no stages, 2 stages in ", "gap at most "):
        assert text in told
    points = found["points"]
    for one, other in itertools.pairwise(points):
        assert one["peak_bytes"] < other["peak_bytes"] and one["time_us"] > other["time_us"]
    assert 0 < found["bound"]["bound_time_us"] <= points[-1]["time_us"] and found["exact"] is False and found["gap"]
    plan, chosen = tensoropt.load_plan(str(plan_file)), points[found["chosen"]]
    assert len(plan.stages) == chosen["stages"]
    assert (plan.peak_bytes, plan.time_us) == (chosen["peak_bytes"], pytest.approx(chosen["time_us"]))
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_frontier_with_stages_is_kept_and_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], everything: bool
) -> None:
    file, plan_file = tmp_path / "frontier.json", tmp_path / "plan.json"
    asked = ("--stages", "1,2", "--micro-batches", "4", "--frontier", str(file), "--plan", str(plan_file))
    assert main([*SEARCH, *asked]) == 0
    capsys.readouterr()
    found = tensoropt.load_frontier(str(file))
    assert found.gaps.tolist() == [row["gap"] for row in found.value["points"]]
    baselines = {each["name"]: each for each in found.value["details"]["baselines"]}
    assert list(baselines) == ["data-parallel", "optcnn", "tofu", "mesh-tensorflow"]
    assert len(Plan.from_json(baselines["data-parallel"]["plan"]).stages) == 1
    at_once = find_baseline(find_frontier(record_named(DEEP, "sgd", None).model, named("v100-1x4"), 4), "data-parallel")
    assert baselines["data-parallel"]["points"][0]["time_us"] == at_once.points[0].time_us
    told = json.loads(said(capsys, 0, "plans", file, "--top", 100, "--json"))["plans"]
    assert {row["stages"] for row in told} <= {1, 2} and len(told) == len(found)
    for row in told if everything else (told[0], told[-1]):
        plan, number = found.plan(row["point"]), row["point"]
        assert len(plan.stages) == row["stages"] and plan.point == number
        assert (round(plan.time_us * 1e3), plan.peak_bytes) == (round(row["time_us"] * 1e3), row["peak_bytes"])
        explained = json.loads(said(capsys, 0, "explain", file, "--point", number + 1, "--json"))
        assert len(explained["stages"]) == row["stages"]
        assert explained["time_us"] == plan.time_us
    chosen = tensoropt.load_plan(str(plan_file))
    assert found.fastest().to_json()["time_us"] == pytest.approx(chosen.time_us)
    assert found.at(found.smallest().peak_bytes).peak_bytes == found.smallest().peak_bytes
    assert "micro-batches" in said(capsys, 0, "plans", file)
    found.save(tmp_path / "again.json")
    assert tensoropt.load_frontier(tmp_path / "again.json").value == found.value
    assert "within memory" in said(capsys, 0, "diff", file, file)
    shown = json.loads(said(capsys, 0, "report", file, "--json"))
    assert [each["name"] for each in shown["baselines"]] == list(baselines)
    points = found.value["points"]
    assert [point["time_us"] for point in shown["frontier"]] == [row["time_us"] for row in points]
    for number, report in shown["plans"].items():
        row = points[int(number)]
        assert ("stages" in report) == (row["stages"] > 1)
        assert (report["time_us"] if row["stages"] > 1 else report["points"]["time_us"][0]) == row["time_us"]
    file.write_text(file.read_text().replace('"stages": 2', '"stages": 3'))
    with pytest.raises(InputError, match="was changed since it was saved"):
        tensoropt.load_frontier(file)


def test_so_many_stages_as_asked_for_are_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan_file, page = tmp_path / "plan.json", tmp_path / "page.html"
    outputs = ("--plan", str(plan_file), "--report", str(page))
    assert main([*SEARCH, "--stages", "4", "--schedule", "gpipe", "--micro-batches", "8", *outputs]) == 0
    told = capsys.readouterr().out
    assert "plan      mini_time: 4 stages on 4 devices" in told and f"wrote {page}" in told
    assert "8 micro-batches by gpipe" in told
    embedded = json.loads(page.read_text().partition(f'id="{DATA_ID}">')[2].partition("</script>")[0])
    shown = embedded["plans"][str(embedded["chosen"])]
    assert [stage["devices"] for stage in shown["stages"]] == [[0], [1], [2], [3]]
    assert all(set(stage["report"]["views"]) == {"0"} for stage in shown["stages"])
    plan = tensoropt.load_plan(str(plan_file))
    assert [stage.in_flight for stage in plan.stages] == [8] * 4


def test_a_curve_takes_the_fastest_of_each_number_of_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "curve.json"
    asked = ("--option", "profiling", "--parallelism", "1,2,4", "--micro-batches", "4", "--memory", "1GB", "--stages", "2")
    assert main([*SEARCH, *asked, "--json", str(file)]) == 0
    assert "stages" in capsys.readouterr().out
    curve = json.loads(file.read_text())["curve"]
    assert [(point["parallelism"], point["fits"], point["stages"]) for point in curve] == [(2, True, 2), (4, True, 2)]


def test_a_plan_that_its_devices_cannot_hold_is_noted() -> None:
    recorded, hardware = record_named(DEEP, "sgd", 64), named("v100-1x4")
    request = Request(recorded.model, hardware, None, micro_batches=4, budget=Budget(seconds=0))
    frontier = find_with_stages(request, 4, (2,))
    plan, least = frontier.fastest(), frontier.points_of[0].peak_bytes

    def told(n_bytes: int) -> str:
        held = replace(plan, assumed={"device_memory_bytes": n_bytes})
        return result_text(SearchSetup(recorded, hardware, "mini_time", "ft-ldp"), held)

    assert plan.peak_bytes > 1.2 * least
    assert "note" not in told(plan.peak_bytes)
    number = frontier.fastest_within(int((plan.peak_bytes - 1) / 1.1))
    assert f"note      this plan needs {memory_text(plan.peak_bytes)} per device, but " in told(plan.peak_bytes - 1)
    fits = memory_text(frontier.points_of[number].peak_bytes)
    assert f"; point {number + 1} fits with {fits}" in told(plan.peak_bytes - 1)
    assert "; search within" in told(least)


@pytest.mark.parametrize(
    ("asked", "said"),
    [(["--stages", "two"], "--stages takes a positive number of stages, got 'two'"),
     (["--schedule", "gpipe"], "schedule='gpipe' is the order in which stages run; give stages=2 or more with it"),
     (["--stages", "2", "--micro-batches", "7"], "which 7 doesn't divide; give a divisor of 64, such as 4 or 8"),
     (["--stages", "2", "--profile-budget", "1s"], "operators of v100-1x4 can't be measured here"),
     (["--stages", "2", "--option", "profiling", "--parallelism", "1"], "2 stages on 1 device: each takes one at least")],
)  # fmt: skip
def test_what_is_wrong_gets_a_sentence(asked: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in refused(capsys, *SEARCH, *asked)
