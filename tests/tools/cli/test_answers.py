"""``tensoropt explain``, ``diff``, ``plans`` and ``recommend``: what they print and write, and what bad input gets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.commands import said
from plan.frontiers import frontier_of, two_layers

import tensoropt
from tensoropt.common.files import signed
from tensoropt.common.process.tensorflow_import import import_tensorflow
from tensoropt.plan.scaling_curve import Curve, CurvePoint
from tensoropt.tools.cli.main import main

LEFT_OUT = ("tensorflow", "keras", "numba", "networkx", "scipy", "matplotlib")


@pytest.fixture(scope="module")
def found():
    return frontier_of(two_layers)


@pytest.fixture(scope="module")
def folder(found, tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("answers")
    found.save(made / "frontier.json")
    found.turning_point().save(made / "plan.json")
    found.smallest().save(made / "small.json")
    points = [(1, False, 400, None), (2, True, 200, 900.0), (4, True, 90, 500.0), (8, True, 50, 300.0)]
    curve = Curve(
        tuple(
            CurvePoint(
                n, fits, b, us, us and 64e6 / us, True, cluster="v100-1x8", batch=64, limit_bytes=200,
                compute_time_us=us, network_time_us=us and us / 4, price_per_hour=3.6 * n, ends=((b, us),) * fits,
            )
            for n, fits, b, us in points
        )
    )  # fmt: skip
    (made / "curve.json").write_text(json.dumps(curve.to_json()))
    return made


def test_files_are_answered_without_tensorflow_or_the_search(folder):
    commands = [
        ["explain", "plan.json"], ["explain", "frontier.json", "--point", "2"],
        ["diff", "small.json", "plan.json"], ["diff", "frontier.json", "frontier.json"],
        ["plans", "frontier.json"], ["recommend", "frontier.json", "--memory", "1GB"],
        ["recommend", "curve.json", "--memory", "200B"], ["curve", "curve.json", "-o", str(folder)],
        ["report", "frontier.json"], ["report", "plan.json"],
    ]  # fmt: skip
    commands = [[str(folder / word) if word.endswith(".json") else word for word in command] for command in commands]
    script = (
        "import sys\nfrom tensoropt.tools.cli.main import main\n"
        f"for command in {commands!r}:\n    assert main(command) == 0, command\n"
        f"print('imported', [name for name in {LEFT_OUT!r} if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert ended.stdout.splitlines()[-1] == "imported []"


def test_output_that_nobody_reads_to_its_end_is_no_error(folder):
    for options in ([], ["-u"]):
        command = [sys.executable, *options, "-m", "tensoropt", "explain", str(folder / "plan.json")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as process:
            process.stdout.close()
            assert process.stderr.read() == b"" and process.wait(timeout=60) == 141


@pytest.mark.parametrize(
    ("streams", "code", "said"),
    [(">&-", 0, ""), ("2>&-", 0, ""), (">/dev/full", 1, "the output can't be written: No space left on device")],
)
def test_an_output_that_is_closed_or_full_is_no_trace(streams, code, said, folder):
    command = [sys.executable, "-m", "tensoropt", "plans", str(folder / "frontier.json")]
    ended = subprocess.run(["sh", "-c", f'"$@" {streams}', "sh", *command], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (code, said and f"tensoropt: {said}\n")


def test_a_script_without_streams_imports_tensorflow(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    import_tensorflow()
    with sys.stderr as opened:
        print("dropped", file=opened, flush=True)


def test_another_broken_pipe_is_an_error(monkeypatch, capfd):
    def run(arguments):
        raise BrokenPipeError("to a worker")

    monkeypatch.setattr("tensoropt.tools.cli.saved.plans.run", run)
    assert main(["plans", "frontier.json"]) == 1
    assert "BrokenPipeError: to a worker" in capfd.readouterr().err


def test_explain_prints_what_the_plan_says_of_itself(found, folder, tmp_path, capsys):
    loaded = tensoropt.load_plan(folder / "plan.json")
    assert said(capsys, 0, "explain", folder / "plan.json") == loaded.explain() + "\n"
    printed = json.loads(said(capsys, 0, "explain", folder / "plan.json", "--json"))
    assert printed == json.loads(json.dumps(loaded.explanation()))
    file = tmp_path / "told.json"
    assert said(capsys, 0, "explain", folder / "plan.json", "--json", file).endswith(f"wrote {file}\n")
    assert json.loads(file.read_text()) == printed


def test_names_cannot_move_the_cursor(folder, tmp_path, capsys):
    file = tmp_path / "named.json"
    file.write_text((folder / "plan.json").read_text().replace('"MatMul', '"MatMul\\u001b[2J'))
    for command in (["explain", file], ["diff", folder / "plan.json", file]):
        text = said(capsys, 0, *command)
        assert "MatMul\\x1b[2J" in text and not {"\x1b", "\r"} & set(text)


def test_explain_of_a_frontier_is_that_of_its_point(found, folder, capsys):
    file = folder / "detailed.json"
    found.with_details("two layers", 2, baselines=()).save(file)
    for at in range(len(found)):
        plan = found.plan(at)
        told = json.loads(said(capsys, 0, "explain", file, "--point", at + 1, "--json"))
        assert told == json.loads(json.dumps({**plan.explanation(), "frontier": []}))
    by_limit = said(capsys, 0, "explain", file, "--memory", f"{found.peak_bytes(1)}B")
    assert by_limit == said(capsys, 0, "explain", file, "--point", found.at(found.peak_bytes(1)).point + 1)
    assert said(capsys, 0, "explain", file) == said(capsys, 0, "explain", file, "--point", 3)
    assert f"a point from 1 to {len(found)}, got '0'" in said(capsys, 2, "explain", file, "--point", 0)
    assert "no plan of this frontier fits 1 bytes" in said(capsys, 2, "explain", file, "--memory", "1B")
    plan = said(capsys, 0, "explain", folder / "plan.json")
    assert said(capsys, 0, "explain", folder / "plan.json", "--point", 1) == plan  # one point
    assert "a point from 1 to 1, got '2'" in said(capsys, 2, "explain", folder / "plan.json", "--point", 2)


def test_plans_are_the_fastest_within_the_limit(found, folder, capsys):
    loaded = tensoropt.load_frontier(folder / "frontier.json")
    limit = loaded.peak_bytes(len(loaded) // 2)
    told = json.loads(said(capsys, 0, "plans", folder / "frontier.json", "--memory", f"{limit}B", "--top", 3, "--json"))
    best = loaded.at(limit)
    assert told["plans"][0]["point"] == best.point and told["plans"][0]["time_us"] == best.time_us
    assert told["plans"][0]["peak_bytes"] == best.peak_bytes
    times = [row["time_us"] for row in told["plans"]]
    assert len(times) == 3 and times == sorted(times) and told["plans"][0]["slower"] == 0
    fitting = [i for i in range(len(loaded)) if loaded.peak_bytes(i) <= limit]
    assert told["fitting"] == len(fitting)
    table = said(capsys, 0, "plans", folder / "frontier.json", "--memory", f"{limit}B")
    assert f"{best.time_us:,.1f}" in table.splitlines()[3] and table.splitlines()[3].split()[0] == str(best.point + 1)
    assert "no plan of this frontier fits 1 bytes (1 B) per device: the least is" in said(
        capsys, 2, "plans", folder / "frontier.json", "--memory", "1B"
    )
    assert "--top takes a number of plans from 1 up, got '0'" in said(capsys, 2, "plans", "x.json", "--top", 0)


def test_diff_of_plans_tells_configs_and_costs_by_layer(found, folder, capsys):
    before, after = found.smallest(), found.turning_point()
    told = json.loads(said(capsys, 0, "diff", folder / "small.json", folder / "plan.json", "--json"))
    assert told["totals"]["time_us"] == [before.time_us, after.time_us]
    assert told["totals"]["sum_bytes"] == [before.sum_bytes, after.sum_bytes]
    configs = [{op.name: (str(op.config), op.is_rematerialized) for op in plan.operators} for plan in (before, after)]
    changed = {name for name in configs[0] if configs[0][name] != configs[1][name]}
    assert {row["name"] for row in told["operators"]} == changed and changed
    layers = told["layers"]
    for key, total in (("time_us", "compute_time_us"), ("network_time_us", "network_time_us")):
        change = sum(row[key][1] - row[key][0] for row in layers)
        assert change == pytest.approx(told["totals"][total][1] - told["totals"][total][0], abs=1e-6)
    text = said(capsys, 0, "diff", folder / "small.json", folder / "plan.json")
    assert "configs changed" in text and next(iter(changed)) in text
    same = said(capsys, 0, "diff", folder / "plan.json", folder / "plan.json")
    assert "no operator's config differs" in same


def test_diff_of_frontiers_compares_the_fastest_within_memory(found, folder, tmp_path, capsys):
    value = json.loads((folder / "frontier.json").read_text())
    for point in value["points"]:
        point["time_us"], point["compute_time_us"] = point["time_us"] * 2, point["compute_time_us"] * 2
        point["network_time_us"] *= 2
    del value["checksum"]
    slower = tmp_path / "slower.json"
    slower.write_text(signed(json.dumps(value)))
    told = json.loads(said(capsys, 0, "diff", folder / "frontier.json", slower, "--json"))
    assert len(told["limits"]) > 2
    for row in told["limits"]:
        assert row["time_us"][1] == 2 * row["time_us"][0]
        assert row["time_us"][0] == found.points[row["points"][0]].time_us
    assert said(capsys, 0, "diff", folder / "frontier.json", slower).count("+100.0%") == len(told["limits"])
    one = json.loads(said(capsys, 0, "diff", folder / "plan.json", folder / "frontier.json", "--json"))
    assert {row["points"][0] for row in one["limits"]} == {None, 0} and one["is_same_model"]  # a plan is one point


@pytest.mark.parametrize(
    ("arguments", "devices", "why_not"),
    [(["--memory", "200B"], 2, ["1 device: needs 400 B per device, the limit is 200 B"]),
     ([], 2, ["1 device: needs 400 B per device, the limit is 200 B"]),
     (["--memory", "200B", "--step-within", "500us"], 4, ["1 device: needs", "2 devices: 0.9 ms per step, the limit is"]),
     (["--memory", "100B"], 4, ["1 device: needs 400 B", "2 devices: its fastest plan needs 200 B, and the curve"]),
     (["--memory", "100B", "--step-within", "500us"], 4, ["1 device: needs 400 B", "2 devices: 0.9 ms per step"]),
     (["--memory", "300B"], 2, ["1 device: needs 400 B per device, the limit is 300 B"]),
     (["--memory", "400B"], 2, ["1 device: the curve was found within 200 B only"])],
)  # fmt: skip
def test_the_fewest_devices_of_a_curve(folder, capsys, arguments, devices, why_not):
    told = json.loads(said(capsys, 0, "recommend", folder / "curve.json", *arguments, "--json"))
    assert told["devices"] == devices and len(told["why_not_others"]) == len(why_not)
    for why, expected in zip(told["why_not_others"], why_not, strict=True):
        assert why.startswith(expected)
    assert f"{devices} devices of v100-1x8" in said(capsys, 0, "recommend", folder / "curve.json", *arguments)


def test_no_number_of_devices_does(folder, capsys):
    arguments = ["recommend", folder / "curve.json", "--memory", "200B", "--step-within", "100us"]
    assert json.loads(said(capsys, 1, *arguments, "--json"))["devices"] is None
    assert said(capsys, 1, *arguments).startswith("no number of devices of v100-1x8 is known to train it")


def test_a_frontier_and_a_model_are_recommended_as_they_are_planned(found, folder, capsys):
    needed = found.peak_bytes(found.least_point())
    told = json.loads(said(capsys, 0, "recommend", folder / "frontier.json", "--memory", f"{needed}B", "--json"))
    assert told["devices"] == 4 and told["time_us"] == found.at(needed).time_us
    model = f"{Path(__file__).with_name('models.py')}:good"
    told = json.loads(said(capsys, 0, "recommend", model, "--cluster", "v100-1x4", "--memory", "16GB", "--json"))
    assert told["devices"] == 1 and [row["parallelism"] for row in told["candidates"]] == [1, 2, 3, 4]


def replacing(folder: Path, tmp_path: Path) -> list[list[object]]:
    """Commands whose answer would replace a file that they read, or their other answer."""
    plan, frontier, page = folder / "plan.json", folder / "frontier.json", tmp_path / "page.html"
    (tmp_path / "link.json").symlink_to(plan)
    return [
        ["explain", plan, "--json", plan],
        ["explain", plan, "--json", tmp_path / "link.json"],
        ["diff", folder / "small.json", plan, "--json", plan],
        ["plans", frontier, "--json", frontier],
        ["recommend", frontier, "--memory", "1GB", "--json", frontier],
        ["report", frontier, "-o", page, "--json", page],
        ["report", frontier, "-o", page, "--json", frontier],
        ["report", frontier, "-o", folder / "curve.json", "--curve", folder / "curve.json"],
    ]


def test_bad_input_gets_one_sentence(folder, tmp_path, capsys):
    cut = tmp_path / "cut.json"
    cut.write_text((folder / "plan.json").read_text()[:500])
    newer = tmp_path / "newer.json"
    newer.write_text((folder / "plan.json").read_text().replace('"version": 6', '"version": 9'))
    damaged = tmp_path / "damaged.json"
    damaged.write_text((folder / "plan.json").read_text().replace('"config"', '"confog"'))
    staged = tmp_path / "staged.json"
    staged.write_text('{"format": "tensoropt/plan", "version": 6, "stages": []}')
    changed = tmp_path / "changed.json"
    changed.write_text((folder / "frontier.json").read_text().replace('"hardware": "v100', '"hardware": "k80'))
    for arguments, sentence in [
        (["explain", cut], "is not whole JSON"),
        (["explain", newer], "has version 9, expected 6"),
        (["explain", damaged], "is damaged (KeyError: 'config')"),
        (["explain", staged], "is damaged (ValueError: a plan has at least one stage)"),
        (["explain", folder / "curve.json"], "is not a plan or a frontier"),
        (["explain", tmp_path / "none.json"], "none.json' can't be read: No such file"),
        (["plans", folder / "frontier.json", "--memory", "-3GB"], "memory limit '-3GB' isn't an amount of memory"),
        (["plans", folder / "plan.json"], "is not a frontier"),
        (["plans", changed], "was changed since it was saved"),
        (["diff", cut, folder / "plan.json"], "is not whole JSON"),
        (["diff", folder / "curve.json", folder / "plan.json"], "is not a plan or a frontier"),
        (["diff", damaged, folder / "plan.json"], "is damaged"),
        (["recommend", folder / "plan.json", "--memory", "1GB"], "is not a frontier or a curve"),
        (["recommend", folder / "curve.json", "--memory", "1GB", "--cluster", "k80-1x4"], "is for the cluster v100-1x8"),
        (["recommend", folder / "curve.json", "--memory", "1B", "--step-within", "soon"], "--step-within is a time above 0"),
        (["recommend", "zoo:lenet5", "--memory", "1GB"], "recommend needs the cluster of a model"),
        (["explain", folder / "plan.json", "--json", tmp_path / "no" / "x.json"], "there is no folder"),
        *((words, "would replace") for words in replacing(folder, tmp_path)),
    ]:
        assert sentence in said(capsys, 2, *arguments), arguments
