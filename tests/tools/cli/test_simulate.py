"""``tensoropt simulate`` and ``search --algorithm mcmc``: what they print and write, and what bad input gets."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from helpers.commands import refused

from tensoropt.plan.plan import Plan
from tensoropt.profiling.hardware import named
from tensoropt.search.flexflow import monte_carlo
from tensoropt.tools.cli.main import main
from tensoropt.tools.timeline import COLLECTIVES_ROW, FIRST_THREAD, STEPS_ROW

GOOD = f"{Path(__file__).with_name('models.py')}:good"


@pytest.fixture(scope="module")
def plans(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("plans")
    for cluster in ("k80-1x4", "v100-1x4"):
        file = folder / f"{cluster}.json"
        assert main(["search", GOOD, "--cluster", cluster, "--algorithm", "data-parallel", "--plan", str(file)]) == 0
    return folder


def simulate(*arguments: object) -> int:
    return main(["simulate", *map(str, arguments)])


def test_the_step_is_told_and_written(plans, tmp_path, capsys):
    trace, result = tmp_path / "trace.json", tmp_path / "result.json"
    assert simulate(GOOD, "--plan", plans / "k80-1x4.json", "--trace", trace, "--json", result) == 0
    told = capsys.readouterr().out
    for text in (
        "simulated on k80-1x4 by its topology", "0:gpu0 to 0:gpu3, 4 alike", "0:gpu0 > 0:switch0 and 7 alike",
        "critical path", "MatMul", f"wrote {trace}", f"wrote {result}",
    ):  # fmt: skip
        assert text in told
    value = json.loads(result.read_text())
    assert (value["format"], value["version"]) == ("tensoropt/simulation", 1)
    assert [each["name"] for each in value["devices"]] == [f"0:gpu{i}" for i in range(4)]
    assert len(value["peak_bytes"]) == 4 and len(value["links"]) == 12
    path = value["critical_path"]
    assert path[0]["start_us"] == 0 and path[-1]["end_us"] == value["makespan_us"]
    assert value["additive_time_us"] == pytest.approx(Plan.load(plans / "k80-1x4.json").time_us)
    assert simulate(GOOD, "--plan", plans / "k80-1x4.json", "--json") == 0
    assert json.loads(capsys.readouterr().out) == value


def test_the_trace_has_the_rows_of_a_measured_one(plans, tmp_path):
    trace = tmp_path / "trace.json"
    assert simulate(GOOD, "--plan", plans / "k80-1x4.json", "--trace", trace) == 0
    value = json.loads(trace.read_text())
    assert value["displayTimeUnit"] == "ms"
    events = [event for event in value["traceEvents"] if event["ph"] == "X"]
    (step,) = [event for event in events if event["pid"] == 0 and event["tid"] == STEPS_ROW]
    operators = [event for event in events if event["pid"] == 0 and event["tid"] == FIRST_THREAD]
    collectives = [event for event in events if event["pid"] == 0 and event["tid"] == COLLECTIVES_ROW]
    assert {"MatMul", "MatMul (backward)"} <= {event["name"] for event in operators}
    assert any(event["name"].startswith("all_reduce(ab) for") for event in collectives)
    for event in events:
        assert event["ts"] >= 0 and event["ts"] + event["dur"] <= step["dur"] + 1e-6
    names = [event["args"]["name"] for event in value["traceEvents"] if event["name"] == "process_name"]
    assert names == ["rank 0 and 3 alike, simulated", "links, simulated"]
    for one, other in pairwise(operators):
        assert one["ts"] + one["dur"] <= other["ts"] + 1e-6 or other["ts"] + other["dur"] <= one["ts"] + 1e-6


def test_without_a_topology_a_step_takes_its_plan_s_time(plans, tmp_path, capsys):
    result = tmp_path / "result.json"
    assert simulate(GOOD, "--plan", plans / "v100-1x4.json", "--json", result) == 0
    assert "simulated on v100-1x4 by its levels" in capsys.readouterr().out
    value = json.loads(result.read_text())
    assert value["makespan_us"] == value["additive_time_us"] == Plan.load(plans / "v100-1x4.json").time_us
    assert value["links"] == []


def test_another_cluster_of_the_same_mesh_can_be_simulated(plans, capsys):
    assert simulate(GOOD, "--plan", plans / "v100-1x4.json", "--cluster", "p100-1x4") == 0
    assert "simulated on p100-1x4 by its topology" in capsys.readouterr().out


def test_bad_input_gets_a_sentence(plans, tmp_path, capsys):
    plan = plans / "k80-1x4.json"
    told = refused(capsys, "simulate", GOOD, "--plan", plan, "--cluster", "k80-2x2")
    assert "a mesh of (1 | 2, 2)" in told and "k80-2x2 doesn't make of 4 devices" in told and "(2 | 2)" in told
    assert "the plan is for 4 devices" in refused(capsys, "simulate", GOOD, "--plan", plan, "--cluster", "k80-1x2")
    assert "no hardware is called 'k81-1x4'" in refused(capsys, "simulate", GOOD, "--plan", plan, "--cluster", "k81-1x4")
    other = GOOD.replace(":good", ":without_rule")
    assert "another model" in refused(capsys, "simulate", other, "--plan", plan)
    same = tmp_path / "same.json"
    assert "would replace" in refused(capsys, "simulate", GOOD, "--plan", plan, "--trace", same, "--json", same)
    assert "would replace" in refused(capsys, "simulate", GOOD, "--plan", plan, "--json", plan)
    nowhere = tmp_path / "no-such-folder" / "t.json"
    assert "no-such-folder" in refused(capsys, "simulate", GOOD, "--plan", plan, "--trace", nowhere)
    value = json.loads(plan.read_text())
    value["assumed"]["hardware"] = "my own cluster"
    unknown = tmp_path / "unknown.json"
    unknown.write_text(json.dumps(value))
    assert "found for the hardware 'my own cluster'" in refused(capsys, "simulate", GOOD, "--plan", unknown)
    assert simulate(GOOD, "--plan", unknown, "--cluster", "k80-1x4") == 0


def test_a_faulty_topology_is_named_with_its_file(plans, tmp_path, capsys):
    value = named("k80-1x4").to_json()
    value["topology"]["links"][0]["bytes_per_s"] = -1
    file = tmp_path / "faulty.json"
    file.write_text(json.dumps(value))
    told = refused(capsys, "simulate", GOOD, "--plan", plans / "k80-1x4.json", "--cluster", file)
    assert "faulty.json: topology.links[0] from '0:gpu0' to '0:switch0': bytes_per_s: got -1" in told


def test_mcmc_finds_a_plan_that_can_be_simulated(tmp_path, capsys):
    file, result = tmp_path / "plan.json", tmp_path / "result.json"
    asked = ("search", GOOD, "--cluster", "k80-1x4", "--algorithm", "mcmc", "--seconds", "100", "--plan", str(file))
    assert main(asked) == 0
    told = capsys.readouterr().out
    assert "search    mcmc: 1 point" in told and "data-parallel" in told and "no operator runs on a part" in told
    assert simulate(GOOD, "--plan", file, "--json", result) == 0
    simulated_us = json.loads(result.read_text())["makespan_us"]
    assert f"simulated {simulated_us:,.1f} us;" in told


def test_ctrl_c_writes_the_best_so_far(tmp_path, capsys, monkeypatch):
    file = tmp_path / "plan.json"
    reports = []

    def reported(walk) -> bool:
        reports.append(walk)
        if len(reports) == 200:
            raise KeyboardInterrupt
        return False

    monkeypatch.setattr(monte_carlo.Walk, "is_over", property(reported))
    asked = ("search", GOOD, "--cluster", "k80-1x4", "--algorithm", "mcmc", "--seconds", "1000", "--plan", str(file))
    assert main(asked) == 130
    told = capsys.readouterr()
    assert "interrupted, the best so far" in told.out and f"wrote {file}" in told.out
    assert "search interrupted; this is the best that it had found" in told.err
    assert Plan.load(file).parallelism == 4
