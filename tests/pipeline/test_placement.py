"""Operators that a user places on devices: stages are cut so, or a sentence says why they can't be."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import accumulate.models as models
import numpy as np
import pytest
from helpers.large import first
from helpers.searches import find_with_stages

import tensoropt
from tensoropt.common.errors import InputError
from tensoropt.ft import Budget
from tensoropt.plan.plan import Plan
from tensoropt.profiling.hardware import named
from tensoropt.search.frontiers.find_frontier import searched
from tensoropt.search.options import find_answer
from tensoropt.search.request import Request, request_of
from tensoropt.search.stages.placement import Block, fewest_stages
from tensoropt.tools.cli.main import main


def request(name: str, force: object, cluster: str = "v100-1x4", **changed: object) -> Request:
    model = models.recorded(name, "adam").model
    found = request_of(model, named(cluster), None, force, micro_batches=4)
    return Request(**{**vars(found), "budget": Budget(seconds=0), **changed})  # type: ignore[arg-type]


def plan_of(asked: Request, stages: object = None) -> Plan:
    return find_answer("mini_time", dataclasses.replace(asked, stages=stages), asked.hardware.n_devices)  # type: ignore[arg-type]


def products(name: str) -> list[str]:
    """Return the names of a model's products, in program order."""
    return [op.name for op in models.recorded(name, "adam").model.graph.step_operators if op.type == "MatMul"]


def devices_of(plan: Plan, operator: str) -> tuple[int, ...]:
    """Return the devices that run an operator."""
    (stage,) = (each for each in plan.stages if operator in {op.name for op in each.operators})
    return stage.devices


@pytest.mark.parametrize(
    ("placed", "stages", "sizes"),
    first(
        1,
        [({1: [0, 1, 2], 2: [3]}, None, (3, 1)), ({1: [0]}, None, (1, 3)), ({2: [1, 2]}, (3,), (1, 2, 1)),
         ({2: [2, 3]}, None, (2, 2)), ({1: [0, 1]}, (2,), (2, 2)), ({-1: [3]}, (2, 3), None)],
    ),
)  # fmt: skip
def test_the_stages_have_the_devices_and_operators_that_are_placed(
    placed: dict[int, list[int]], stages: tuple[int, ...] | None, sizes: tuple[int, ...] | None
) -> None:
    names = products("attention")
    force = {names[number]: {"devices": devices} for number, devices in placed.items()}
    plan = plan_of(request("attention", force), stages)
    assert sizes is None or tuple(len(stage.devices) for stage in plan.stages) == sizes
    for operator, pinned in force.items():
        assert devices_of(plan, operator) == tuple(pinned["devices"])


def test_degrees_are_forced_inside_of_stages() -> None:
    name = products("mlp")[-1]
    plan = plan_of(request("mlp", {name: {"devices": [2, 3], "n": 2}}))
    (operator,) = (op for stage in plan.stages for op in stage.operators if op.name == name)
    assert operator.config.degree("n") == 2 and devices_of(plan, name) == (2, 3)


def record(devices: list[list[int]]) -> tuple[object, object, object]:
    """Record as many layers, each placed on devices."""
    x = tensoropt.placeholder(tensoropt.float64, [8, 16])
    hidden = x
    for layer, own in enumerate(devices):
        with tensoropt.place(devices=own):
            weights = tensoropt.get_variable(f"w{layer}", [16, 16], tensoropt.float64)
            hidden = tensoropt.tanh(tensoropt.matmul(hidden, weights))
    loss = tensoropt.reduce_mean(tensoropt.square(hidden - 1.0))
    return x, loss, tensoropt.AdamOptimizer(0.1).minimize(loss)


def test_a_script_places_layers_and_trains_as_one_device_does() -> None:
    losses = {}
    for parallelism, devices in ((1, [[0]] * 4), (4, [[0], [0], [1], [2, 3]])):
        tensoropt.init(hardware="v100-1x4", seed=3)
        x, loss, train = record(devices)
        plan = tensoropt.find_strategy(parallelism=parallelism, verbose=0)
        if parallelism == 4:
            assert [stage.devices for stage in plan.stages] == [(0,), (1,), (2, 3)]
            assert [devices_of(plan, f"w{layer}") for layer in range(4)] == [(0,), (0,), (1,), (2, 3)]
        tensoropt.build_execution_graph(plan=plan, collectives="emulated")
        feeds = {x: np.random.default_rng(1).normal(size=(8, 16))}
        losses[parallelism] = [float(tensoropt.run([loss, train], feeds)[0]) for _ in range(3)]
    assert losses[4] == pytest.approx(losses[1], rel=1e-10)


MODEL = """
import tensoropt

def placed():
    x = tensoropt.placeholder(tensoropt.float32, [16, 32])
    with tensoropt.place(devices={first}):
        hidden = tensoropt.matmul(x, tensoropt.get_variable("a", [32, 32]))
    with tensoropt.place(devices={second}):
        return tensoropt.reduce_mean(tensoropt.square(tensoropt.matmul(hidden, tensoropt.get_variable("b", [32, 32]))))
"""


def search(tmp_path: Path, first_devices: str, second: str, *arguments: str) -> int:
    (tmp_path / "model.py").write_text(MODEL.format(first=first_devices, second=second))
    return main(["search", f"{tmp_path / 'model.py'}:placed", "--devices", "4", "--seconds", "0", *arguments])


def test_the_command_follows_a_models_placement(tmp_path: Path) -> None:
    asked = ("--schedule", "gpipe", "--micro-batches", "2", "--plan", str(tmp_path / "plan.json"))
    assert search(tmp_path, "[0]", "[1, 2, 3]", *asked) == 0
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert [stage["devices"] for stage in plan["stages"]] == [[0], [1, 2, 3]] and plan["schedule"]["name"] == "gpipe"


def test_a_placement_is_compared_with_the_frontier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.py").write_text(MODEL.format(first="[0]", second="[1, 2, 3]"))
    file = tmp_path / "compared.json"
    where = ("--devices", "4", "--seconds", "0", "--json", str(file))
    assert main(["compare", f"{tmp_path / 'model.py'}:placed", *where, "--memory", "1kB"]) == 0
    (row,) = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("placed")]
    placed = json.loads(file.read_text())["placed"]
    assert [stage["devices"] for stage in placed["stages"]] == [[0], [1, 2, 3]] and not placed["fits"]
    assert row[3] == f"{placed['time_us']:,.1f}" and " ".join(row[-8:]) == "2 stages on 1+3 devices, does not fit"


@pytest.mark.parametrize(
    ("placed", "arguments", "said"),
    [(("[0, 1]", "[2, 5]"), (), "tensoropt.place takes consecutive devices, such as [0, 1], got [2, 5]"),
     (("[0, 1]", "[4]"), (), "is placed on device 4, but the plan is for devices 0 to 3; place it on these"),
     (("[0, 1]", "[1, 2]"), (), "a device has one stage; place them on the same devices, or on devices that aren't"),
     (("[2]", "[0, 1]"), (), "comes before it: stages have their devices in the order of the program"),
     (("[1]", "[2]"), ("--stages", "2"), "devices [1] and [2] of 4, for which it takes 4"),
     (("[0]", "[1, 2, 3]"), ("--stages", "1"), "stages=1 is asked for, and operators are placed in 2 stages"),
     (("[0]", "[1, 2]"), (), "the model can't be cut into 3 stages where operators are placed: each needs a variable "
         "that is trained, and the model has 2; ask for fewer stages, or place fewer operators"),
     (("0", "[1]"), (), "tensoropt.place takes a list of numbers of devices, such as [0, 1], got 0"),
     (("[0]", "[1, 2, 3]"), ("--memory", "1kB"), "no plan fits 1,000 bytes (1 kB) per device: in 2 stages and "),
     (("[0]", "[1, 2, 3]"), ("--algorithm", "optcnn"), "algorithm 'optcnn' knows no stages"),
     (("[0]", "[1, 2, 3]"), ("--schedule", "2f2b"), "unknown schedule '2f2b'; expected '1f1b', 'gpipe'")],
)  # fmt: skip
def test_what_cannot_be_placed_gets_a_sentence(
    placed: tuple[str, str], arguments: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert search(tmp_path, *placed, *arguments) == 2
    (told,) = capsys.readouterr().err.strip().splitlines()
    assert said in told


@pytest.mark.parametrize(
    ("force", "said"),
    [({"MatMul": {"devices": 3}}, r"force=\{'MatMul': \{'devices': ...\}\} takes a list of numbers of devices"),
     ({"MatMul": {"devices": [-1]}}, "takes a list of numbers of devices"),
     ({"Nothing": {"devices": [0]}}, "force names 'Nothing', which is neither an operator's name nor a type"),
     ({"MatMul": {"devices": [1], "m": 0}}, "force takes a positive number of blocks for MatMul's factor 'm', got 0")],
)  # fmt: skip
def test_a_malformed_placement_gets_a_sentence(force: object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        request("mlp", force)


def test_devices_of_two_machines_that_are_not_whole_are_refused() -> None:
    asked = request("mlp", {products("mlp")[0]: {"devices": [0, 1, 2]}}, "v100-2x2")
    with pytest.raises(InputError, match="neither of one machine nor whole machines of 2; place it on such"):
        find_with_stages(asked, 4, None)


def test_a_variable_is_where_it_is_used_first() -> None:
    """Placed away from that, it is refused, as operators in another order are."""
    asked = request("mlp", {products("mlp")[-1]: {"devices": [0, 1]}, products("mlp")[0]: {"devices": [2, 3]}})
    with pytest.raises(InputError, match="comes before it"):
        find_with_stages(asked, 4, None)
    variable = next(op.name for op in models.recorded("mlp", "adam").model.graph.variables if op.is_trainable)
    asked = request("mlp", {variable: {"devices": [2, 3]}})
    with pytest.raises(InputError, match="is placed on devices 2, 3, but it is with what uses it on devices 0, 1"):
        find_with_stages(asked, 4, None)


def test_trainers_and_searches_without_stages_refuse_it() -> None:
    with pytest.raises(InputError, match="is placed on devices, which plans in stages of recorded models alone have"):
        searched(request("mlp", {"MatMul": {"devices": [0, 1]}}), 4)


@pytest.mark.parametrize(
    ("blocks", "n"), [([(0, 2)], 2), ([(1, 2)], 3), ([(0, 4)], 1), ([(0, 1), (3, 1)], 3), ([(1, 1), (2, 1)], 4)]
)
def test_what_is_left_between_placed_devices_is_a_stage(blocks: list[tuple[int, int]], n: int) -> None:
    assert fewest_stages({str(number): Block(*each) for number, each in enumerate(blocks)}, 4) == n
