"""One source of numbers: what is told from a file's rows is what the plan itself says."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import asdict

import pytest

import tensoropt
from tensoropt.common.memory_units import default_limit
from tensoropt.report.explanation import explanation, layer_costs, memory_parts, time_parts
from tensoropt.report.explanation_text import explanation_text
from tensoropt.report.frontier_rows import FrontierRows
from tensoropt.report.plan_rows import NO_LAYER, PlanRows, layers_of
from tensoropt.report.sentences import config_words


@pytest.fixture(scope="module")
def loaded(frontier_file):
    return tensoropt.load_frontier(frontier_file)


def test_the_rows_of_each_point_are_those_of_its_plan(found, frontier, loaded):
    assert len(frontier) == len(found) > 5
    for point in range(len(frontier)):
        whole, plan = frontier.plan(point), loaded.plan(point)
        (rows,), (told,) = whole.stages, json.loads(json.dumps(plan.to_json()))["stages"]
        assert rows.operators == told["operators"] and rows.reshardings == told["reshardings"]
        assert whole.summary == plan.summary()
        assert rows.value["network_time_us"] == plan.network_time_us
        for row, resharding in zip(rows.reshardings, plan.reshardings, strict=True):
            assert [way.text for way in rows.executed(row)] == [
                str(step) for path in resharding.paths for step in path.steps if step.communicates
            ]
        assert asdict(loaded.points[point]).items() <= {**frontier.points[point]}.items()


def test_points_are_chosen_as_a_loaded_frontier_chooses_them(frontier, loaded):
    assert frontier.turning_point == loaded.turning_number
    assert frontier.least_point() == loaded.least_point()
    limits = [None, *(peak + off for peak in {row["peak_bytes"] for row in frontier.points} for off in (-1, 0, 1))]
    assert len(limits) > 10
    for limit in limits:
        assert frontier.fastest_within(limit) == loaded.fastest_within(limit)


def test_parts_and_layers_add_up_to_the_plan(frontier):
    for point in range(len(frontier)):
        (plan,) = frontier.plan(point).stages
        assert sum(part["time_us"] for part in time_parts(plan)) == pytest.approx(plan.value["time_us"], abs=1e-6)
        assert sum(part["bytes"] for part in memory_parts(plan)) == plan.value["sum_bytes"]
        told = layer_costs(plan)
        compute = sum(layer["time_us"] for layer in told)
        network = sum(layer["network_time_us"] for layer in told)
        assert compute == pytest.approx(plan.value["compute_time_us"], abs=1e-6)
        assert network == pytest.approx(plan.value["network_time_us"], abs=1e-6)
        assert sum(layer["operators"] for layer in told) == len(plan.operators)


def test_a_plan_a_file_and_the_explanation_have_the_same_numbers(found, plan_file):
    plan = found.turning_point()
    by_plan, by_file = plan.explanation(), explanation(PlanRows(json.loads(plan_file.read_text())))
    differing = {key for key in by_plan if by_plan[key] != by_file[key]}
    assert differing == {"has_frontier", "smaller", "faster"}
    ((stage,), (of_file,)) = by_plan["stages"], by_file["stages"]
    assert sum(row["bytes"] for row in stage["peak"]) == by_plan["peak_bytes"] == plan.peak_bytes
    assert json.loads(plan_file.read_text()) == json.loads(json.dumps(plan._with_peak().to_json()))
    (whole,) = found.without_stages
    peak = whole.peak(plan.point)
    instant = of_file["peak_instant"]
    assert (instant["instruction"], instant["instructions"]) == (peak.instruction, len(whole.program(plan.point)))
    assert {row["name"]: row["bytes"] for row in of_file["peak_tensors"]} == dict(peak.by_tensor.most_common(12))
    text = explanation_text(by_file)
    assert f"the peak is at instruction {peak.instruction + 1} of {instant['instructions']}, while it makes " in text
    assert peak.by_tensor.most_common(1)[0][0] in text.partition("tensors at the peak")[2]
    # A file that is loaded and saved again keeps it.
    loaded = tensoropt.load_plan(plan_file)
    assert json.dumps(loaded.explanation()) == json.dumps(by_file)
    assert by_plan["faster"]["time_us"] == found.points[plan.point + 1].time_us


@pytest.mark.parametrize(
    ("kind", "config", "results", "words"),
    [("MatMul", "m:a n:b", ["[a, b]"], "rows over a, columns over b"),
     ("MatMul", "k:ab", ["[-, -] +ab"], "the summed dimension over ab"),
     ("Conv2D", "n:a o:bc", ["[a, -, -, bc]"], "batch over a, output channels over bc"),
     ("Relu", "d0:ab", ["[ab, -]"], "dimension 0 over ab"),
     ("Reshape", "r1:b", ["[-, -, b]"], "dimension 2 over b"),
     ("Einsum", "Q:b", ["[-] +b"], "summed dimension Q over b"),
     ("AddV2", "+0:a", ["[-] +a"], "partial sums of its operands over a"),
     ("Tanh", "-", ["[-]"], "a whole copy on every device")],
)  # fmt: skip
def test_a_config_in_words(kind, config, results, words):
    assert config_words(kind, config, tuple(results)) == words


@pytest.mark.parametrize(
    ("names", "uses", "layers"),
    [
        (  # a model's own name is no layer
            "digits_1/dense/kernel digits_1/dense_1/kernel x digits_1_1/dense_2/MatMul digits_1_1/dense_1_1/MatMul "
            "digits_1_1/pool/Mean", [], f"dense|dense_1|{NO_LAYER}|dense|dense_1|pool",
        ),
        (  # Keras calls the second call of "dense" as it calls another layer: what it uses tells them apart
            "digits_1/dense/kernel digits_1/dense_1/kernel digits_1_1/dense_1/MatMul digits_1_1/dense_1_2/MatMul",
            [{"tensor": "digits_1/dense/kernel:0", "consumers": ["digits_1_1/dense_1/MatMul"]}],
            "dense|dense_1|dense|dense_1",
        ),
        ("dense/kernel dense_1/kernel block/inner/kernel model_1/dense_1/MatMul model_1/dense_1_1/MatMul "
         "model_1/block_1/inner_1/Add model_1/pool/Mean loss", [],
         f"dense|dense_1|block|dense_1|dense_1|block|pool|{NO_LAYER}"),
    ],
)  # fmt: skip
def test_layers_are_the_users_names(names, uses, layers):
    kinds = {"kernel": "Variable", "x": "Placeholder", "loss": "Mean"}
    named = [(name, kinds.get(name.split("/")[-1], name.split("/")[-1])) for name in names.split()]
    assert list(layers_of(named, uses).values()) == layers.split("|")


def test_a_plan_that_its_device_cannot_hold_says_so_and_what_fits(frontier):
    value = deepcopy(dict(frontier.value))
    fastest = frontier.fastest_within(None)
    needed = frontier.needed_bytes(fastest)
    for has, is_too_large, fits in ((needed, False, True), (needed - 1, True, True), (1, True, False)):
        value["assumed"] = {**value["assumed"], "device": "a device", "device_memory_bytes": has}
        changed = FrontierRows(value)
        told = explanation(changed.plan(fastest), *changed.facts_of(fastest))
        assert (told["too_large"] is not None) == is_too_large
        assert told["device_memory_bytes"] == has and ((told["too_large"] or "") in explanation_text(told))
        if is_too_large:
            found = changed.fastest_within(default_limit(has))
            assert (found is not None) == fits
            expected = f"point {found + 1} fits" if fits else "search within"
            assert expected in told["too_large"] and "a device has" in told["too_large"]
