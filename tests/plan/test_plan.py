"""Plans are saved, loaded, held against the model, and read by people."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from session.models import begin, built, losses, network

import tensoropt
from tensoropt.plan.plan import Plan

FORCED = {"MatMul": {"n": 2}, "MatMul_1": {"k": 2}, "Relu": {"d1": 2}}


@pytest.fixture(scope="module")
def planned():
    begin()
    network()
    return tensoropt.find_strategy(force=FORCED)


@pytest.fixture
def file(planned, tmp_path) -> Path:
    planned.save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


def changed(file: Path, change) -> Path:
    value = json.loads(file.read_text())
    change(value)
    file.write_text(json.dumps(value))
    return file


def operator(value, name):
    return next(op for op in value["stages"][0]["operators"] if op["name"] == name)


def test_a_plan_comes_back_as_it_was(planned, file):
    loaded = tensoropt.load_plan(file)
    peak = planned.frontier.peak_json(planned.point)  # which its file has, too
    value = planned.to_json()
    value["stages"][0]["peak"] = peak
    assert loaded.to_json() == value == json.loads(file.read_text())
    assert loaded.stages[0].strategy.configs == planned.stages[0].strategy.configs
    assert loaded.stages[0].strategy.shared == planned.stages[0].strategy.shared
    assert loaded.reshardings == planned.reshardings
    assert loaded.operators == planned.operators
    assert (loaded.table(), repr(loaded)) == (planned.table(), repr(planned))
    assert loaded.frontier_table() == planned.frontier_table() and loaded.frontier is None


def test_a_loaded_plan_runs_without_a_search_and_gives_the_same_losses(file, monkeypatch):
    expected = losses(built(force=FORCED))
    monkeypatch.setattr("tensoropt.search.frontiers.find_frontier.find_frontier", lambda *args: pytest.fail("searched"))
    for plan in (str(file), file, tensoropt.load_plan(file)):
        begin()
        model = network()
        tensoropt.build_execution_graph(plan=plan, collectives="emulated")
        assert losses(model) == expected


def test_saving_leaves_one_whole_file(planned, tmp_path):
    file = tmp_path / "plan.json"
    file.write_text("old")
    planned.save(file)
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]
    with pytest.raises(tensoropt.InputError, match=r"can't be saved as '/no/such/plan.json': No such file or directory"):
        planned.save("/no/such/plan.json")


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [*(("plan", text, "is not whole JSON") for text in ("\x80", "[" * 100_000)),
     ("plan", "[1]", "is not a plan: got format 'list', expected 'tensoropt/plan'"),
     ("plan", '{"format": "tensoropt/curve", "version": 1}', "got format 'tensoropt/curve', expected 'tensoropt/plan'"),
     ("plan", '{"format": "tensoropt/plan", "version": 5}', "has version 5, expected 6"),
     ("plan", '{"format": "tensoropt/plan", "version": 6}', "is damaged"),
     ("frontier", "[" * 100_000, "is not whole JSON"),
     ("frontier", "[1]", "is not a frontier: got format 'list', expected 'tensoropt/frontier'"),
     ("frontier", '{"format": "tensoropt/plan", "version": 1}', "'tensoropt/plan', expected 'tensoropt/frontier'"),
     ("frontier", '{"format": "tensoropt/frontier", "version": 9}', "has version 9, expected 10"),
     ("frontier", '{"format": "tensoropt/frontier", "version": 10}', "is damaged (KeyError: 'checksum')")],
)  # fmt: skip
def test_files_that_are_no_plans_or_frontiers(tmp_path, kind, text, said):
    (tmp_path / "file.json").write_bytes(text.encode("latin-1"))
    load = getattr(tensoropt, f"load_{kind}")
    with pytest.raises(tensoropt.InputError, match=re.escape(said)):
        load(tmp_path / "file.json")
    with pytest.raises(tensoropt.InputError, match=f"{kind} '/no/such.json' can't be read: No such file"):
        load("/no/such.json")


def test_any_key_that_is_missing_is_noticed(file):
    whole = json.loads(file.read_text())
    for key in whole:
        file.write_text(json.dumps({k: v for k, v in whole.items() if k != key}))
        with pytest.raises(tensoropt.InputError):
            tensoropt.load_plan(file)
    for part in ("operators", "reshardings"):
        for key in whole["stages"][0][part][0]:
            bent = json.loads(json.dumps(whole))
            del bent["stages"][0][part][0][key]
            file.write_text(json.dumps(bent))
            with pytest.raises(tensoropt.InputError, match="is damaged"):
                tensoropt.load_plan(file)


@pytest.mark.parametrize(
    "change",
    [lambda value: value.update(sum_bytes="12"),
     lambda value: value.update(mesh=[]),
     lambda value: value.update(mesh=[{"name": "device", "count": 0}]),
     lambda value: value["stages"][0]["operators"][0].update(config="n:Z"),
     lambda value: value["stages"][0]["operators"][0].update(results=["[z]"]),
     lambda value: value["stages"][0]["reshardings"][0].update(forward=["[-, -]", "[a, b]", "[b, a]"])],
)  # fmt: skip
def test_values_that_make_no_sense_are_noticed(file, change):
    with pytest.raises(tensoropt.InputError, match="is damaged"):
        tensoropt.load_plan(changed(file, change))


def on_eight_devices(value: dict, name: str, **changed: object) -> None:
    value["mesh"] = [{"name": "machine", "count": 1}, {"name": "device", "count": 8}]
    value["stages"][0].update(mesh=value["mesh"], devices=list(range(8)))
    operator(value, name).update(changed)


def with_another_resharding(value: dict) -> None:
    value["stages"][0]["reshardings"].append(value["stages"][0]["reshardings"][0] | {"consumers": ["v"]})


@pytest.mark.parametrize(
    ("change", "said"),
    [(lambda value: on_eight_devices(value, "v", config="d1:ab d0:c"),
      r"plan gives Variable 'v' \(models.py:\d+\) the config 'd1:ab d0:c' and the result .*, but the config leads to"),
     (lambda value: on_eight_devices(value, "b", config="d0:abc", results=["[abc]"]),
      r"Variable 'b' \(models.py:\d+\) the config 'd0:abc', .* factor 'd0' has only 5 elements, 8 blocks are too many"),
     (lambda value: operator(value, "Relu").update(config="q:b"),
      r"Relu' \(models.py:\d+\) the config 'q:b', which can't be had: it has no factor 'q'; its factors are d0, d1"),
     (lambda value: value["stages"][0]["reshardings"].pop(), "the plan lacks the resharding of .* find the strategy"),
     (with_another_resharding, r"the plan (lacks|has, against its configs,) the resharding of")],
)  # fmt: skip
def test_what_does_not_fit_together_or_to_the_model_is_refused(file, change, said):
    begin()
    network()
    with pytest.raises(tensoropt.InputError, match=said):
        tensoropt.build_execution_graph(plan=changed(file, change), collectives="emulated")


def test_a_plan_of_another_model_names_the_difference(file):
    begin()
    network(hidden=11)
    with pytest.raises(tensoropt.InputError, match="another model: operators have the same names, but other shapes"):
        tensoropt.build_execution_graph(plan=file, collectives="emulated")
    begin()
    model = network(trained=False)
    tensoropt.GradientDescentOptimizer(0.1).minimize(model.loss + tensoropt.nn.l2_loss(model.w, name="decay"))
    with pytest.raises(tensoropt.InputError, match=r"the model has L2Loss 'decay' \(test_plan.py:\d+\), the plan has not"):
        tensoropt.build_execution_graph(plan=file, collectives="emulated")
    begin()
    w = tensoropt.get_variable("w", [3])
    tensoropt.GradientDescentOptimizer(0.1).minimize(tensoropt.reduce_sum(w * w))
    with pytest.raises(tensoropt.InputError, match="the plan has Placeholder 'x', the model has not"):
        tensoropt.build_execution_graph(plan=file, collectives="emulated")


def test_a_plan_for_more_devices_than_ranks(file):
    begin()
    network()
    with pytest.raises(
        tensoropt.InputError, match=r"the plan is for 4 devices, but 1 rank was started; start it with mpirun -n 4"
    ):
        tensoropt.build_execution_graph(plan=file)


def test_the_table_is_readable(planned):
    table = planned.table()
    lines = table.splitlines()
    assert max(map(len, lines)) <= 160
    assert lines[0].split() == "operator type config result layout memory time (us) collectives".split()
    names = [line.split()[0] for line in lines[2:]]
    assert {"w", "v", "MatMul", "MatMul_1", "Relu"} <= set(names)
    assert "all_reduce" in next(line for line in lines if line.startswith("SparseSoftmax"))
    # Constants that TensorFlow leaves behind are no news.
    assert "Const" not in table
    assert "mini_time: 4 devices (1 | 2, 2)" in planned.summary() and repr(planned).endswith(table)


def test_long_names_keep_both_ends():
    begin()
    w = tensoropt.get_variable("a_scope_with_a_very_long_name/and_another_of_that_kind/weights", [4])
    tensoropt.GradientDescentOptimizer(0.1).minimize(tensoropt.reduce_sum(w * w))
    plan = tensoropt.find_strategy(parallelism=1)
    assert "a_scope_with_a_very..hat_kind/weights".startswith(plan.table().splitlines()[2].split()[0][:19])
    assert plan.table().splitlines()[2].split()[0].endswith("_kind/weights")


def test_the_frontier_table_is_numbered_and_marks_the_choice(planned):
    lines = planned.frontier_table().splitlines()
    assert lines[0].split()[:3] == ["point", "paper's", "memory"] and lines[2].startswith("---")
    (chosen,) = [line for line in lines if line.endswith("chosen")]
    assert int(chosen.split()[0]) == planned.point + 1
    assert Plan.from_json(planned.to_json()).frontier_table() == planned.frontier_table()


def test_explain_tells_where_time_and_memory_go_and_what_is_next(tmp_path):
    begin()
    network()
    found = tensoropt.find_strategy(parallelism=4)
    frontier = found.frontier
    assert frontier is not None and len(frontier.points) > 2
    plan = frontier.plan(1)
    told = plan.explain()
    for text in (plan.summary(), "where the time goes", "MatMul", "collectives", "parameters, gradients and slots"):
        assert text in told
    lines = {line[:12]: line for line in told.splitlines()}
    for line, number in ((lines["the next sma"], 0), (lines["the next fas"], 2)):
        point = frontier.points[number]
        assert f"{point.time_us:,.1f}" in line and f"{point.time_us / plan.time_us - 1:+.1%}" in line
        assert f"{frontier.peak_bytes(number) / plan.peak_bytes - 1:+.1%}" in line
    # Shares of time add up to all of it, and so do those of memory.
    for what in ("where the time goes", "where the paper's sum of"):
        rows = told.split(what)[1].split("\n\n")[0].splitlines()
        assert sum(float(row.split()[-1].rstrip("%")) for row in rows if "%" in row) == pytest.approx(100, abs=1)
    assert "none is smaller" in frontier.plan(0).explain()
    # From a file, which has the frontier as a table.
    plan.save(tmp_path / "plan.json")
    loaded = tensoropt.load_plan(tmp_path / "plan.json").explain()
    assert loaded.split("\n\n")[:4] == told.split("\n\n")[:4]
    (neighbours,) = (part for part in loaded.split("\n\n") if part.startswith("the next smaller"))
    assert neighbours.splitlines()[-2].endswith("chosen")
