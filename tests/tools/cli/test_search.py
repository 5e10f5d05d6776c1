"""``tensoropt search``: what it finds, prints and writes, and what bad input gets."""

import itertools
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf
from helpers.commands import refused
from helpers.mpirun import child_environment, forked

import tensoropt
from tensoropt.common.errors import InputError
from tensoropt.common.files import write_atomically
from tensoropt.plan.plan import Plan
from tensoropt.profiling.hardware import named
from tensoropt.program.orders.schedule import SCHEDULES
from tensoropt.search import options
from tensoropt.search.problem.choices import CHOICES
from tensoropt.search.problem.splittable import check_usable, most_devices
from tensoropt.tools import offline
from tensoropt.tools.cli import answers
from tensoropt.tools.cli.main import main
from tensoropt.tools.cli.searches import search as search_command
from tensoropt.tools.offline import record_named

MODELS = Path(__file__).with_name("models.py")
GOOD = f"{MODELS}:good"


def search(*arguments):
    return main(["search", *map(str, arguments)])


def read(file):
    return json.loads(file.read_text())


def test_frontier_and_plan_are_printed_and_written(tmp_path, capsys):
    plan_file, json_file, picture = tmp_path / "plan.json", tmp_path / "found.json", tmp_path / "found.png"
    assert search(GOOD, "--devices", 4, "--plan", plan_file, "--json", json_file, "--plot", picture) == 0
    told = capsys.readouterr().out
    found = read(json_file)
    for text in (
        "6 operators, 4 kB of parameters, trained by sgd", "v100-1x4: 4 x V100-SXM2-16GB with 16 GB",
        "turning point", "chosen", "eliminations: ", "; exact; ", "seconds   record ",
        "plan      mini_time: 4 devices (1 | 2, 2)", f"wrote {plan_file}",
    ):  # fmt: skip
        assert text in told
    assert found["format"] == "tensoropt/search"
    assert found["version"] == 4
    assert (found["model"], found["cluster"], found["devices"]) == (GOOD, "v100-1x4", 4)
    assert (found["algorithm"], found["optimizer"], found["exact"]) == ("ft-ldp", "sgd", True)
    assert found["gap"] == {"median": 0.0, "worst": 0.0}
    assert set(found["eliminations"]) == {"node", "edge", "branch", "heuristic"}
    stages = found["seconds_by_phase"]
    assert set(stages) == {"record", "import", "costs", "search", "peaks", "other candidates", "unroll"}
    assert found["seconds"] == pytest.approx(sum(stages.values()) - stages["record"])
    points = found["points"]
    for one, other in itertools.pairwise(points):
        assert one["sum_bytes"] < other["sum_bytes"]
        assert one["time_us"] > other["time_us"]
    for point in points:
        assert point["compute_time_us"] + point["network_time_us"] == pytest.approx(point["time_us"])
        assert point["bound_time_us"] == point["time_us"]
        assert point["exact"] and point["gap"] == pytest.approx(0.0, abs=1e-9)
    plan = Plan.load(plan_file)
    chosen = points[found["chosen"]]
    assert (plan.sum_bytes, plan.time_us) == (chosen["sum_bytes"], chosen["time_us"])
    assert plan.compute_time_us == pytest.approx(chosen["compute_time_us"])
    assert plan.parallelism == 4
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert sorted(tmp_path.iterdir()) == sorted([plan_file, json_file, picture])


def test_the_plan_is_that_of_a_session(tmp_path, capsys):
    asked = ("--cluster", "v100-1x2", "--memory", "1GB", "--plan", tmp_path / "plan.json", "--json", tmp_path / "found.json")
    assert search(f"{MODELS}:trains", *asked) == 0 and read(tmp_path / "found.json")["optimizer"] == "adam"
    capsys.readouterr()
    tensoropt.init(hardware="v100-1x2", seed=0)
    from_file = offline._function_in(MODELS, "trains")
    from_file()
    plan = tensoropt.find_strategy(memory="1GB")
    searched = tensoropt.load_plan(tmp_path / "plan.json")
    assert searched.model_digest == plan.model_digest
    assert searched.operators == plan.operators
    tensoropt.build_execution_graph(plan=searched, collectives="emulated")


@pytest.mark.parametrize("option", ["mini_time", "mini_parallelism"])
def test_the_frontier_is_written_with_all_its_plans(tmp_path, capsys, option):
    file, json_file, plan_file = tmp_path / "frontier.json", tmp_path / "found.json", tmp_path / "plan.json"
    arguments = ("--devices", 4, "--option", option, "--memory", "1GB", "--frontier", file, "--json", json_file)
    assert search(GOOD, *arguments, "--plan", plan_file) == 0
    assert f"wrote {file}\n" in capsys.readouterr().out
    frontier, points = tensoropt.load_frontier(file), read(json_file)["points"]
    assert [point.time_us for point in frontier] == [point["time_us"] for point in points]
    assert frontier.at("1GB").operators == Plan.load(plan_file).operators
    assert frontier.smallest().sum_bytes == points[0]["sum_bytes"]


def test_too_little_memory(capsys):
    told = refused(capsys, "search", GOOD, "--devices", 2, "--memory", "1kB")
    assert told.startswith("no plan fits 1,000 bytes (1 kB) per device: the least on 2 devices ")


def test_the_optimizer_counts(tmp_path):
    least = {}
    for optimizer in ("sgd", "momentum", "adam"):
        file = tmp_path / optimizer
        search(GOOD, "--devices", 1, "--optimizer", optimizer, "--json", file)
        least[optimizer] = read(file)["points"][0]["sum_bytes"]
        assert read(file)["optimizer"] == optimizer
    # Momentum has one slot more per parameter, Adam two: 4 kB each.
    assert least["momentum"] - least["sgd"] == least["adam"] - least["momentum"] == 4000


@pytest.mark.parametrize(("model", "given", "told"), [
    (GOOD, ("--batch", 7), "records a batch of 64, got a batch of 7; give a divisor of it"),
    (f"{MODELS}:trains", ("--optimizer", "sgd"), "minimizes its loss by adam itself, got --optimizer sgd; leave out"),
    ("zoo:lenet5:batch=6", ("--batch", 8), "has batch=6, got --batch 8; give one of them"),
    ("zoo:lenet5", ("--batch", 0), "takes a positive number of samples, got 0"),
])  # fmt: skip
def test_a_batch_or_optimizer_that_the_model_sets_itself_is_refused(capsys, model, given, told):
    assert told in refused(capsys, "search", model, "--devices", 1, *given)


def test_a_plan_for_another_batch_is_refused_with_both(tmp_path, capsys):
    model, plan = "zoo:lenet5", tmp_path / "plan.json"
    assert search(model, "--devices", 1, "--batch", 8, "--plan", plan) == 0
    assert "trained by sgd on batches of 8; recorded" in capsys.readouterr().out
    assert main(["simulate", model, "--batch", "4", "--plan", str(plan)]) == 2
    assert "it is for a batch of 8, the model has one of 4; find" in capsys.readouterr().err


def test_profiling_writes_the_curve(tmp_path, capsys):
    arguments = ("--devices", 8, "--option", "profiling", "--parallelism", "1,2,8")
    file, picture = tmp_path / "curve.json", tmp_path / "curve.svg"
    assert search(GOOD, *arguments, "--json", file, "--plot", picture) == 0
    curve = read(file)
    assert (curve["format"], curve["version"], curve["model"]) == ("tensoropt/curve", 2, GOOD)
    assert [point["parallelism"] for point in curve["curve"]] == [1, 2, 8]
    assert all(point["fits"] for point in curve["curve"])
    assert {point["batch"] for point in curve["curve"]} == {64}
    assert "speedup" in capsys.readouterr().out
    assert "<svg" in picture.read_text()


def test_all_algorithms_find_the_same(tmp_path):
    points = []
    for algorithm in ("ft-ldp", "ft-elimination", "exhaustive"):
        file = tmp_path / algorithm
        assert search(GOOD, "--devices", 2, "--algorithm", algorithm, "--json", file) == 0
        assert read(file)["algorithm"] == algorithm
        # Of strategies of equal costs each may find another one, with another peak.
        points.append([{**point, "peak_bytes": None} for point in read(file)["points"]])
    assert points[0] == points[1] == points[2]


def test_a_plan_that_its_devices_cannot_hold_is_said_to(tmp_path, capsys):
    description = named("v100-1x2").to_json()
    file, plan_file, json_file = tmp_path / "mine.json", tmp_path / "plan.json", tmp_path / "found.json"
    assert search(GOOD, "--cluster", "v100-1x2", "--json", json_file) == 0
    assert "won't run there" not in capsys.readouterr().out
    found = read(json_file)
    needed, least = found["chosen_peak_bytes"], min(point["peak_bytes"] for point in found["points"])
    assert 1.2 * least < needed
    for n_bytes, expected in ((int(1.2 * least), "fits with"), (least - 1, "on more devices")):
        description["device"]["memory_bytes"] = n_bytes
        file.write_text(json.dumps(description))
        assert search(GOOD, "--cluster", file, "--plan", plan_file) == 0
        told = capsys.readouterr().out
        assert "won't run there" in told and expected in told
        assert main(["explain", str(plan_file)]) == 0
        assert "won't run there" in capsys.readouterr().out


def test_operators_without_a_rule_are_named(capsys):
    assert search(f"{MODELS}:without_rule", "--devices", 2) == 0
    assert "Qr runs whole on every device: operator type Qr has no rule" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("function", "expected"),
    [("nothing", "recorded nothing"),
     ("no_loss", "has no training step: its function returned 3"),
     ("fails", r"failed (models.py:36): ValueError: Dimensions must be equal"),
     ("begins_a_session", "can't be recorded (models.py:40): tensoropt.init() was called where a model is only recorded"),
     ("runs", "can't be recorded (models.py:44): a model function only records: run is for a script of its own"),
     ("exits", "failed (models.py:48): it ended Python by SystemExit(3)"),
     ("vector", "can't be trained: minimize takes a scalar loss"),
     ("takes", "failed: TypeError: takes() missing 1 required positional argument: 'argument'"),
     ("untrainable", "can't be trained: there is no trainable variable"),
     ("godo", "has no function 'godo'; it has good")],
)  # fmt: skip
def test_a_bad_model_function_gets_a_sentence(capsys, function, expected):
    assert expected in refused(capsys, "search", f"{MODELS}:{function}", "--devices", 2)
    # Nothing stays behind: not the recording graph, nor what stands in for a session.
    assert tf.executing_eagerly()
    assert search(GOOD, "--devices", 2) == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [(["zoo:vgg19", "--devices", 2], "the zoo has no model 'vgg19': did you mean vgg16"),
     (["zoo:", "--devices", 2], "vgg16"),
     (["vgg16", "--devices", 2], "expected zoo:NAME (zoo: lists them), FILE.py:FUNCTION or FILE.keras"),
     (["nowhere.py:model", "--devices", 2], "file 'nowhere.py' isn't there"),
     (["model.txt:model", "--devices", 2], "file 'model.txt' isn't a Python file"),
     ([GOOD, "--devices", 0], "--devices takes a positive number of devices, got '0'"),
     ([GOOD, "--devices", -2], "--devices takes a positive number of devices, got '-2'"),
     ([GOOD, "--devices", "two"], "--devices takes a positive number of devices, got 'two'"),
     ([GOOD, "--devices", 12], "doesn't fill machines of 8; nearest are 8 and 16"),
     ([GOOD, "--devices", 2, "--memory", "0B"], "must be at least one byte per device"),
     ([GOOD, "--devices", 2, "--memory", "-1GB"], "memory limit '-1GB' isn't an amount of memory"),
     ([GOOD, "--cluster", "v100-2x"], "did you mean v100-2x8"),
     ([GOOD, "--cluster", "nowhere.json"], "nowhere.json: cannot be read"),
     ([GOOD, "--cluster", "v100-1x101"], "101 devices (1 | 101) can't be used"),
     ([GOOD, "--devices", 4, "--parallelism", 5], "parallelism 5 is not possible on v100-1x4"),
     ([GOOD, "--devices", 4, "--parallelism", "1,2"], "mini_time takes one --parallelism"),
     ([GOOD, "--devices", 4, "--parallelism", "1,,2"], "--parallelism takes a positive number of devices, got ''"),
     ([GOOD, "--devices", 2, "--option", "profiling", "--plan", "p.json"], "makes a curve and no plan"),
     ([GOOD, "--devices", 2, "--option", "profiling", "--frontier", "f.json"], "makes a curve and no frontier"),
     ([GOOD, "--devices", 2, "--frontier", "x.json", "--plan", "x.json"], "name the same file"),
     ([GOOD, "--devices", 2, "--json", "/nowhere/x.json"], "there is no folder '/nowhere'"),
     ([GOOD, "--devices", 2, "--json", "/"], "that is a folder"),
     ([GOOD, "--devices", 2, "--plot", "x.unknown"], "a suffix that Matplotlib doesn't know"),
     ([GOOD, "--devices", 2, "--plot", "same.png", "--json", "same.png"], "name the same file"),
     (["zoo:lenet5", "--devices", 2, "--algorithm", "exhaustive"], "enumeration takes at most")],
)  # fmt: skip
def test_bad_arguments_get_a_sentence(capsys, arguments, expected):
    assert expected in refused(capsys, "search", *arguments)


def test_no_result_replaces_a_file_that_is_read(tmp_path, capsys):
    model, hardware = tmp_path / "model.py", tmp_path / "hardware.json"
    model.write_text(MODELS.read_text())
    hardware.write_text(json.dumps(named("v100-1x2").to_json()))
    for option, file in itertools.product(("--plan", "--json"), (model, hardware)):
        said = refused(capsys, "search", f"{model}:good", "--cluster", hardware, option, file)
        assert f"{option} '{file}' would replace '{file}', which the same command names" in said


def test_a_file_that_python_cannot_read(tmp_path, capsys):
    file = tmp_path / "broken.py"
    file.write_text("x = 1\ndef model(:\n")
    assert "failed (broken.py:2): SyntaxError: " in refused(capsys, "search", f"{file}:model", "--devices", 2)


@pytest.mark.parametrize("arguments", [["--algorithm", "best"], ["--devices", "2", "--cluster", "v100-1x2"], []])
def test_wrong_use_ends_with_2(capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        search(GOOD, *arguments)
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 2


def test_a_trace_only_where_it_is_asked_for(capsys, monkeypatch):
    monkeypatch.setenv("TENSOROPT_DEBUG", "0")
    assert main(["search", f"{MODELS}:fails", "--devices", "2", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_interrupted_while_searching(tmp_path, capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("tensoropt.search.frontiers.find_frontier.find_frontier", interrupted)
    assert search(GOOD, "--devices", 2, "--json", tmp_path / "found.json") == 130
    assert capsys.readouterr().err.strip() == "tensoropt: search interrupted"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "what"), [("search", "search"), ("compare", "comparison")])
def test_interrupted_by_a_signal(name, what, tmp_path):
    command = forked("-m", "tensoropt", name, f"{MODELS}:slow", "--devices", "2", "--json", tmp_path / "found.json")
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, *command], **pipes, text=True, env=child_environment()) as process:
        assert process.stdout.readline() == "recording\n"
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert told.strip() == f"tensoropt: {what} interrupted"
    assert not list(tmp_path.iterdir())


def test_a_file_stays_whole_until_the_new_one_is(tmp_path):
    file = tmp_path / "result.json"
    file.write_text("old")

    def interrupted(partial):
        partial.write_text("half of the n")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(file, interrupted, "result")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_choices_are_those_of_the_modules_behind():
    assert (options.OPTIONS, tuple(offline.OPTIMIZERS)) == (search_command.OPTIONS, answers.OPTIMIZERS)
    assert all(choice in answers.OF_PLANS["without"][1] for choice in CHOICES)
    assert f": {', '.join(SCHEDULES)};" in answers.OF_PLANS["schedule"][1]


def test_refusals_need_no_tensorflow():
    code = "import sys, tensoropt.tools.cli.searches.search as s; s.add_arguments(__import__('argparse').ArgumentParser())"
    check = f"{code}; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False, timeout=120).returncode == 0


def brute_force(factors, axes):
    best = 1
    for given in itertools.product(range(-1, len(factors)), repeat=len(axes)):
        degrees, used = [1] * len(factors), 1
        for axis, factor in zip(axes, given, strict=True):
            if factor >= 0:
                degrees[factor] *= axis
                used *= axis
        if all(d <= e and not (even and e % d) for d, (e, even) in zip(degrees, factors, strict=True)):
            best = max(best, used)
    return best


@pytest.mark.parametrize("axes", [(), (2,), (3, 2, 2), (5, 2), (7, 3)])
@pytest.mark.parametrize("factors", [((3, False),), ((6, True), (4, False)), ((2, True), (2, False), (9, True)), ()])
def test_most_devices_is_that_of_trying_all(factors, axes):
    assert most_devices(factors, axes) == brute_force(factors, axes)


def test_a_parallelism_that_some_operator_can_use_is_allowed():
    graph = record_named(GOOD).model.graph
    # [64, 100] by [100, 10]: 64 * 64 * 8 = 2^15 devices.
    check_usable(graph, named("v100-4096x8"), 2**15)
    with pytest.raises(InputError, match=rf"most is {2**15} devices, by MatMul 'MatMul' \(models.py:12\); use {2**15}"):
        check_usable(graph, named("v100-8192x8"), 2**16)
