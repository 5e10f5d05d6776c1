"""Plans with stages: found, saved, run by real ranks and emulated; refused where a model or an argument rules them out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import accumulate.models as models
import pytest
from helpers import zoo
from helpers.commands import said
from helpers.mpirun import run_ranks
from pipeline.staged import check_losses

from tensoropt.common.errors import InputError
from tensoropt.ft import Budget
from tensoropt.plan.plan import Plan
from tensoropt.profiling.hardware import named
from tensoropt.report.explanation import BESIDE, COMPUTE, MESSAGES, WAITS
from tensoropt.report.explanation_text import explanation_text
from tensoropt.report.pages.page import DATA_ID
from tensoropt.report.reading import read_points
from tensoropt.search.options import find_answer
from tensoropt.search.request import Request, checked_stages
from tensoropt.sharding.stages import Stages

TRAIN = Path(__file__).parent / "train.py"


def plan_of(name: str, n_stages: object, parallelism: int = 4, schedule: str | None = None, **changed: object) -> Plan:
    asked = {"budget": Budget(seconds=0), **changed}
    asked |= {"stages": checked_stages(n_stages), "schedule": schedule}
    request = Request(models.recorded(name, "adam").model, named("v100-1x4"), None, **asked)  # type: ignore[arg-type]
    return find_answer("mini_time", request, parallelism)


def embedded_in(page: Path) -> str:
    """Return the data of a report's page as text."""
    return page.read_text().partition(f'id="{DATA_ID}">')[2].partition("</script>")[0]


@pytest.mark.parametrize(("name", "n_stages", "schedule"), [("mlp", 2, None), ("attention", 4, "zero-bubble")])
def test_a_plan_reads_back_is_explained_and_has_one_device_numbers(
    name: str, n_stages: int, schedule: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = plan_of(name, n_stages, schedule=schedule)
    found.save(tmp_path / "plan.json")
    plan = Plan.load(tmp_path / "plan.json")
    assert plan.to_json() == found._with_peak().to_json()
    assert plan.parallelism == 4 and len(plan.stages) == n_stages
    assert found.frontier is not None and plan.frontier_table() == found.frontier.table(found.point)
    told = json.loads(said(capsys, 0, "explain", tmp_path / "plan.json", "--json"))
    assert (told["time_us"], told["peak_bytes"], told["schedule"]["name"]) == (plan.time_us, plan.peak_bytes, plan.schedule)
    assert plan.summary() == told["summary"]
    for stage, planned in zip(told["stages"], plan.stages, strict=True):
        assert sum(row["bytes"] for row in stage["memory"]) == planned.sum_bytes
        shown = {row[key] for row in stage["reshardings"] for key in ("tensor", "consumer")}
        assert not any("received" in name for name in (*shown, *(row["name"] for row in stage["layers"])))
        assert (stage["devices"], stage["peak_bytes"]) == (list(planned.devices), planned.peak_bytes)
    text = said(capsys, 0, "explain", tmp_path / "plan.json")
    same = json.loads(said(capsys, 0, "diff", tmp_path / "plan.json", tmp_path / "plan.json", "--json"))
    assert same["totals"]["time_us"] == [plan.time_us] * 2 and same["totals"]["stages"] == [n_stages] * 2
    assert same["operators"] == same["layers"] == []
    page = json.loads(said(capsys, 0, "report", tmp_path / "plan.json", "--json"))
    assert (page["time_us"], page["peak_bytes"], page["timeline"]) == (plan.time_us, plan.peak_bytes, plan.timeline)
    for stage, planned in zip(page["stages"], plan.stages, strict=True):
        assert stage["report"]["points"]["time_us"] == [planned.time_us]
        assert stage["report"]["first_rank"] == planned.devices[0] and stage["peak_bytes"] == planned.peak_bytes
    found.report(tmp_path / "found.html")
    at_hand = json.loads(embedded_in(tmp_path / "found.html"))
    at_hand = at_hand["plans"][str(at_hand["chosen"])]
    for stage, of_file, planned in zip(at_hand["stages"], page["stages"], found.stages, strict=True):
        assert stage["report"]["points"] == of_file["report"]["points"]
        view = stage["report"]["views"]["0"]
        assert view["decisions"] or len(planned.devices) == 1
    assert plan.explain() == explanation_text(told) and told["summary"] in found._repr_html_()
    assert f"{n_stages} stages on 4 devices" in text and text.count("where the time goes") == n_stages
    check_losses(plan, models.recorded(name, "adam"))
    with pytest.raises(InputError, match="another model"):
        plan.cut(models.recorded("windows", "adam").model)


@pytest.mark.parametrize(("n_stages", "schedule", "n"), [(4, "interleaved", 4), (2, "1f1b", 4), (2, None, 1)])
def test_the_rows_of_a_step_and_of_a_peak_add_up(n_stages: int, schedule: str | None, n: int) -> None:
    plan = plan_of("attention", n_stages, 2, schedule, micro_batches=n)
    told = plan.explanation()
    for number, stage in enumerate(told["stages"]):
        assert sum(row["bytes"] for row in stage["peak"]) == stage["peak_bytes"]
        parts = dict.fromkeys((BESIDE, COMPUTE, MESSAGES, WAITS), stage["time"])
        us = {part: sum(row["time_us"] for row in rows if row["part"] == part) for part, rows in parts.items()}
        assert math.fsum(row["time_us"] for row in stage["time"]) == pytest.approx(plan.time_us)
        assert us[COMPUTE] == pytest.approx(stage["compute_time_us"]) and us[MESSAGES] > 0 <= us[WAITS]
        assert us[MESSAGES] + us[WAITS] == pytest.approx(stage["idle_share"] * plan.time_us)
        beside = f"stage {(number + 2) % 4} on the same devices"
        assert (us[BESIDE] > 0) == (n_stages == 4) == (f", with {beside}" in plan.explain())


def test_more_micro_batches_are_in_flight_over_a_slow_link_where_they_fit() -> None:
    model, hardware = models.recorded("attention", "adam").model, named("v100-1x2")
    (level,) = (each for each in hardware.levels if each.count > 1)

    def found(factor: float, limit_bytes: int | None = None) -> Plan:
        changed = replace(level, bytes_per_s=level.bytes_per_s * factor, latency_us=0.0)
        levels = tuple(changed if each is level else each for each in hardware.levels)
        asked = replace(hardware, levels=levels), limit_bytes
        request = Request(model, *asked, micro_batches=4, budget=Budget(seconds=0), stages=(2,))
        return find_answer("mini_time", request, 2)

    fast, slow = found(1e6), found(0.01)
    assert slow.stages[0].in_flight > 2 and slow.stages[1].in_flight == 1
    assert slow.time_us > fast.time_us and slow.stages[0].idle_share > fast.stages[0].idle_share
    limited = found(0.01, slow.peak_bytes - 1)
    assert limited.peak_bytes < slow.peak_bytes and limited.time_us >= slow.time_us


def test_zero_bubble_is_chosen_where_it_pays_and_fits_the_limit() -> None:
    model, hardware = models.recorded("windows", "adam").model, named("v100-1x2")
    levels = tuple(replace(each, bytes_per_s=1e6 * each.bytes_per_s, latency_us=0.0) for each in hardware.levels)
    hardware = replace(hardware, levels=levels)

    def found(schedule: str | None, limit_bytes: int | None = None) -> Plan:
        asked = {"micro_batches": 4, "stages": (2,), "schedule": schedule}
        return find_answer("mini_time", Request(model, hardware, limit_bytes, budget=Budget(seconds=0), **asked), 2)

    of_name = {schedule: found(schedule) for schedule in ("1f1b", "gpipe", "zero-bubble")}
    chosen, deferring = found(None), of_name["zero-bubble"]
    assert chosen.to_json() | {"frontier": []} == deferring.to_json() | {"frontier": []}
    assert chosen.schedule == "zero-bubble"
    assert chosen.stages[0].deferred == 0 < chosen.stages[1].deferred
    assert chosen.time_us < 0.99 * min(of_name["1f1b"].time_us, of_name["gpipe"].time_us)
    assert chosen.peak_bytes > of_name["1f1b"].peak_bytes
    limited = found(None, chosen.peak_bytes - 1)
    assert limited.peak_bytes < chosen.peak_bytes and limited.time_us > chosen.time_us
    assert "deferred" in chosen.table() and "zero-bubble" in chosen.brief()


def test_a_damaged_plan_is_refused_by_whatever_reads_it(tmp_path: Path) -> None:
    whole, file = plan_of("mlp", 2).to_json(), tmp_path / "plan.json"
    damage: list[tuple[Callable[[Any], object], str]] = [
        (lambda value: value["stages"][1].update(devices=[0, 1]), "don't fit together"),
        (lambda value: value["stages"][0].update(devices=[5]), "don't fit together"),
        (lambda value: value["stages"].reverse(), "don't fit together"),
        (lambda value: value["stages"].pop(), "1 stage with a timeline"),
        (lambda value: value["stages"].clear(), "a plan has at least one stage"),
        (lambda value: value.pop("timeline"), "2 stages without a timeline"),
        (lambda value: value["timeline"].update(tasks="0,0,0,1,0"), "a task has 5 numbers, expected 6"),
        (lambda value: value["schedule"].update(name="1f2b"), "2 stages by a schedule '1f2b'"),
        (lambda value: value["schedule"].update(name="plain"), "2 stages by a schedule 'plain'"),
        (lambda value: value["schedule"].update(micro_batches=0), "0 micro-batches"),
        (lambda value: value["schedule"].update(micro_batches=10**9), "1000000000 micro-batches"),
        (lambda value: value["stages"][0].update(in_flight=0), r"stages have \(in flight, deferred\) \[\(0, 0\)"),
        (lambda value: value["stages"][1].update(deferred=-1), r"stages have \(in flight, deferred\) .*-1\)\]"),
        (lambda value: value.update(time_us=-5), "time_us is below 0"),
        (lambda value: value["stages"][1].update(peak_bytes=-5), "peak_bytes is below 0"),
        (lambda value: value["stages"][1]["operators"][0].update(sum_bytes=-1), "sum_bytes is below 0"),
    ]
    for change, why in damage:
        change(value := deepcopy(whole))
        file.write_text(json.dumps(value))
        for read in (Plan.load, read_points):
            with pytest.raises(InputError, match=f"damaged.*{why}"):
                read(file)


@pytest.mark.parametrize(
    ("n_stages", "changed", "said"),
    [(8, {}, "8 stages on 4 devices: each takes one at least; give 4 or fewer"),
     ("two", {}, r"stages takes whole numbers from 1 up, such as 2, or \(1, 2\) for a choice, got 'two'"),
     ((2, 0), {}, r"stages takes whole numbers from 1 up, .* got \(2, 0\)"),
     ((), {}, "stages is empty"),
     (2, {"micro_batches": 3}, "8 samples, which 3 doesn't divide"),
     (2, {"without": frozenset(["stages"])}, "stages=2 is asked for, and to do without 'stages'"),
     (2, {"algorithm": "optcnn"}, "algorithm 'optcnn' knows no stages"),
     (2, {"objectives": ("memory", "network")}, "stages=2 trades memory and time, got the objectives memory,network"),
     (2, {"limit_bytes": 10}, r"no plan fits 10 bytes .* stage \d alone, .* needs")],
)  # fmt: skip
def test_what_stages_dont_allow_gets_a_sentence(n_stages: object, changed: dict[str, object], said: str) -> None:
    model = models.recorded("mlp", "adam").model
    request = Request(model, named("v100-1x4"), changed.pop("limit_bytes", None), **changed)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=said):
        find_answer("mini_time", replace(request, stages=checked_stages(n_stages)), 4)


def test_more_stages_than_there_are_parameters_are_refused() -> None:
    with pytest.raises(InputError, match="can't be cut into 8 stages"):
        request = Request(models.recorded("dropping_out", "sgd").model, named("v100-1x8"), None, stages=(8,))
        find_answer("mini_time", request, 8)


def test_a_stage_without_parameters_is_named_with_its_line() -> None:
    model = zoo.record(models.FUNCTIONS["mlp"], "sgd")
    last = list(model.graph.step_operators)[-1].name
    stages = Stages(model.model, (last,))
    with pytest.raises(InputError, match=r"stage 1 of 2 would have no parameters: none is used after AddV2 'add_1' \(zoo"):
        assert stages.models


def losses(n_ranks: int, *arguments: object, **env: str) -> dict[str, Any]:
    done = run_ranks(n_ranks, TRAIN, *map(str, arguments), env=env)
    line = next(line for line in done.stdout.splitlines() if line.startswith("{"))
    found: dict[str, Any] = json.loads(line)
    return found


def test_ranks_of_two_stages_that_fetch_different_things_end_with_a_sentence() -> None:
    done = run_ranks(2, TRAIN, "2", "4", "1f1b", "mpi", "2", env={"OTHER_FETCH": "1"})
    assert done.returncode == 2, done.stderr
    assert "ranks 0 and 1 come with different plans, versions or fetches" in done.stderr


def test_real_ranks_train_in_stages_as_one_device_does(tmp_path: Path, everything: bool) -> None:
    """Two ranks save a checkpoint after two steps, from which four go on by ``--all``; three have unequal stages."""
    one, folder = losses(1, 1, 1, "-", "emulated", 1), tmp_path / "run"
    folder.mkdir()
    runs = (2, 2, 4, "1f1b", "mpi", 2, tmp_path / "plan.json"), (4, 2, 4, "gpipe", "mpi", 4)
    for n_ranks, *arguments in runs[: 2 if everything else 1]:
        found = losses(n_ranks, *arguments, CHECKPOINT=str(folder))
        assert found["losses"] == pytest.approx(one["losses"][0 if n_ranks == 2 else 2 :], rel=1e-10)
        assert found["evaluated"] == pytest.approx(one["evaluated"], rel=1e-10)
        assert "2 stages" in str(found["plan"])
    unequal = losses(3, 2, 4, "zero-bubble", "mpi", 3)
    assert unequal["losses"] == pytest.approx(one["losses"], rel=1e-10) and "1+2 devices" in str(unequal["plan"])
    # The table is where the product is, which looks up the rows for the first stage: it isn't sent.
    first, last = json.loads((tmp_path / "plan.json").read_text())["stages"]
    lookups = [[op["name"] for op in stage["operators"] if "Gather" in op["name"]] for stage in (first, last)]
    assert lookups == [["Gather/received_0"], ["Gather"]]
