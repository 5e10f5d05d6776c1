"""``tensoropt timeline``: lengths of intervals, shares of a step, and traces of a plan that ranks run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.mpirun import run_ranks
from hypothesis import given
from hypothesis import strategies as st

from tensoropt.profiling.trace import MemoryEvent, OperatorEvent, allocated
from tensoropt.tools.cli.main import main
from tensoropt.tools.timeline import CollectiveEvent, RankTimeline, covered, shares

MODEL = f"{Path(__file__).with_name('check_model.py')}:model"
INTERVALS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=8)


@given(INTERVALS)
def test_what_intervals_cover_is_the_number_of_instants_in_any_of_them(pairs):
    intervals = np.array([(start, start + length) for start, length in pairs], np.int64).reshape(-1, 2)
    assert covered(intervals) == len({instant for start, end in intervals.tolist() for instant in range(start, end)})


def operator(name: str, start_us: int, duration_us: int) -> OperatorEvent:
    return OperatorEvent(name, "MatMul", 7, start_us * 10**6, duration_us * 10**6)


def test_the_shares_of_a_worked_example():
    # Two steps of 100 us: 10 to 30 and 20 to 50 compute, 40 to 70 communicate, of which 10 overlap; the second is idle.
    steps = np.array([[0, 100_000], [200_000, 300_000]])
    events = (operator("a", 10, 20), operator("gradients/a_grad/MatMul", 20, 30), operator("collective_1", 35, 40))
    collective = CollectiveEvent(None, "all_reduce", 8, 40_000, 30_000)
    assert shares(RankTimeline(0, "here", steps, events, (collective,), ()), ["a"]) == (100, 20, 15, 5, 70)


def test_a_curve_of_memory():
    events = [MemoryEvent(3, 1, 0), MemoryEvent(1, 1, 100), MemoryEvent(2, 2, 50), MemoryEvent(4, 9, -10)]
    assert list(allocated(events)) == [(1, 100), (2, 150), (3, 50), (4, 40)]


@pytest.fixture(scope="module")
def plan(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("plan") / "plan.json"
    assert main(["search", MODEL, "--cluster", "v100-1x2", "--memory", "2MB", "--plan", str(file)]) == 0
    return file


def test_ranks_trace_a_plan(plan, tmp_path):
    folder = tmp_path / "traces" / "new"
    done = run_ranks(2, "-m", "tensoropt", "timeline", MODEL, "--plan", plan, "--steps", 2, "--output", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "in collectives ms" in done.stdout and f"wrote {folder / 'all.json'}" in done.stdout
    planned = {op["name"] for op in json.loads(plan.read_text())["stages"][0]["operators"]}
    both = json.loads((folder / "all.json").read_text())["traceEvents"]
    for rank in range(2):
        events = json.loads((folder / f"rank{rank}.json").read_text())["traceEvents"]
        assert [event["name"] for event in events] == [event["name"] for event in both if event["pid"] == rank]
        complete = [event for event in events if event["ph"] == "X"]
        steps = [event for event in complete if event["cat"] == "step"]
        ends = [(step["ts"], step["ts"] + step["dur"]) for step in steps]
        assert len(ends) == 2 and ends[0][1] <= ends[1][0]
        # All of it lies within the steps, by whichever clock it was told.
        slack_us = 500
        for event in complete:
            start, end = event["ts"], event["ts"] + event["dur"]
            assert any(first - slack_us <= start and end <= last + slack_us for first, last in ends), event
        collectives = [event for event in complete if event["cat"] == "collective"]
        assert len(collectives) >= 2 and all(event["args"]["bytes"] > 0 for event in collectives)
        assert all(" for " in event["name"] and "shape" in event["args"] for event in collectives)
        forward, backward = ([event["name"] for event in complete if event["cat"] == way] for way in ("forward", "backward"))
        assert {"Conv2D + BiasAdd + Relu", "MaxPool2d"} <= set(forward)
        assert {name for each in forward for name in each.split(" + ")} <= planned
        assert "Conv2D (backward)" in backward and {name.removesuffix(" (backward)") for name in backward} <= planned
        assert any(event["ph"] == "C" and event["args"]["bytes"] > 0 for event in events)
    simulated_beside_measured(plan, both, tmp_path / "simulated.json")


def test_ranks_trace_their_stages(tmp_path):
    file, model = tmp_path / "plan.json", f"{Path(__file__).with_name('models.py')}:deep"
    asked = ("--cluster", "v100-1x2", "--stages", "2", "--micro-batches", "2", "--seconds", "0")
    assert main(["search", model, *asked, "--plan", str(file)]) == 0
    done = run_ranks(2, "-m", "tensoropt", "timeline", model, "--plan", file, "--steps", 1, "--output", tmp_path / "traces")
    assert done.returncode == 0, done.stdout + done.stderr
    for rank, stage in enumerate(json.loads(file.read_text())["stages"]):
        events = json.loads((tmp_path / "traces" / f"rank{rank}.json").read_text())["traceEvents"]
        ran = {event["name"] for event in events if event.get("cat") in ("forward", "backward")}
        planned = {op["name"] for op in stage["operators"]}
        assert ran and {name for each in ran for name in each.removesuffix(" (backward)").split(" + ")} <= planned
        assert any("MatMul" in name and "(backward)" in name for name in ran)


def test_a_file_that_is_no_trace_is_not_replaced(plan, tmp_path, capsys):
    for name in ("all.json", "rank0.json"):
        folder = tmp_path / name.removesuffix(".json")
        folder.mkdir()
        (folder / name).write_bytes(plan.read_bytes())
        assert main(["timeline", MODEL, "--plan", str(folder / name), "--output", str(folder)]) == 2
        assert f"'{folder / name}' is no trace, and one would replace it; give another --output" in capsys.readouterr().err
        assert (folder / name).read_bytes() == plan.read_bytes()


def simulated_beside_measured(plan: Path, measured: list[dict], file: Path) -> None:
    """Hold the simulated trace of a plan against a measured one: what opens side by side has the same form and names."""
    assert main(["simulate", MODEL, "--plan", str(plan), "--cluster", "v100-1x2", "--trace", str(file)]) == 0
    simulated = json.loads(file.read_text())["traceEvents"]
    of_rank = [[event for event in events if event["pid"] == 0] for events in (measured, simulated)]

    def rows(events: list[dict]) -> dict[int, str]:
        named = [event for event in events if event["name"] == "thread_name"]
        return {event["tid"]: event["args"]["name"].split(",")[0] for event in named}

    assert [rows(events) for events in of_rank] == [{1: "steps", 2: "collectives", 4: "operators"}] * 2
    complete = [[event for event in events if event["ph"] == "X"] for events in of_rank]
    # What the model doesn't have, TensorFlow's calls of Python and its own operators, is in the measured one alone.
    forms = [{(*event, event["tid"], event["cat"]) for event in events} for events in complete]
    assert {form for form in forms[0] if form[-1] not in ("call", "other")} == forms[1]
    durations_us = [[event["dur"] for event in events if event["cat"] == "step"] for events in complete]
    assert len(durations_us[1]) == 1 and all(1 < each < 60e6 for each in (*durations_us[0], *durations_us[1]))
    # Each operator and collective that ran and takes time is in the simulated step, in the same row and part of the step.
    # Updates have TensorFlow's names where it ran them, and a bucket is measured once, and simulated as its parts.
    names = [
        {(event["tid"], event["cat"], name)
         for event in events
         if event["cat"] in ("forward", "backward", "collective")
         if event["args"].get("planned us, both ways", 1.0) > 0
         for name in event["name"].split(" + ")}
        for events in complete
    ]  # fmt: skip
    assert len(names[0]) > 10 and names[0] <= names[1], names[0] - names[1]


def test_one_device_alone_and_what_is_refused(tmp_path, capsys):
    file = tmp_path / "plan.json"
    assert main(["search", MODEL, "--cluster", "v100-1x1", "--plan", str(file)]) == 0
    asked = ["timeline", MODEL, "--plan", str(file), "--output"]
    assert main([*asked, str(tmp_path / "here"), "--steps", "1"]) == 0
    events = json.loads((tmp_path / "here" / "all.json").read_text())["traceEvents"]
    assert not [event for event in events if event.get("cat") in ("collective", "call")]
    capsys.readouterr()
    for arguments, said in [
        ([str(file)], f"traces can't be saved in '{file}': that is a file; give a folder"),
        ([str(file / "below")], f"traces can't be saved in '{file / 'below'}'"),
        ([str(tmp_path), "--steps", "0"], "--steps takes a positive number of steps"),
        ([str(tmp_path), "--plan", str(tmp_path / "none.json")], "none.json' can't be read"),
    ]:
        assert main([*asked, *arguments]) == 2
        assert said in capsys.readouterr().err
