"""The data of a report and the page around it, without a browser."""

from __future__ import annotations

import itertools
import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import refused
from helpers.timelines import tasks_of

import tensoropt
from tensoropt.common.files import FRONTIER
from tensoropt.ft.problem import INFEASIBLE
from tensoropt.plan.points import thinned
from tensoropt.report.explanation import layer_costs, memory_parts, time_parts
from tensoropt.report.frontier_rows import FrontierRows
from tensoropt.report.pages.page import DATA_ID, page
from tensoropt.report.pages.page_data import frontier_of_stage, report_data
from tensoropt.report.pages.plan_page import COMPARED
from tensoropt.report.plan_rows import SOURCES
from tensoropt.report.reading import read_frontier, read_points
from tensoropt.report.sentences import MOST_DIFFERENCES, time_text
from tensoropt.search.frontiers.decisions import _slope
from tensoropt.tools.cli.main import main


class Data(HTMLParser):
    """The text of the element that holds the data, and all elements and their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.inside, self.elements = "", False, []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.inside = tag == "script" and dict(attrs).get("id") == DATA_ID

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        self.text += data if self.inside else ""


@pytest.fixture(scope="module")
def detailed(found, frontier_file) -> Path:
    file = frontier_file.with_name("detailed.json")
    found.with_details("model.py:two_layers", len(found) - 2).save(file)
    return file


@pytest.fixture(scope="module")
def data(detailed):
    return report_data(read_frontier(detailed), "detailed.json")


def test_the_parts_of_every_point_are_those_of_its_plan(frontier, data):
    for point in range(len(frontier)):
        (plan,) = frontier.plan(point).stages
        told = {(part["part"], part["name"]): part["time_us"][point] for part in data["time_parts"]}
        expected = {(part["part"], part["name"]): part["time_us"] for part in time_parts(plan)}
        assert {key: us for key, us in told.items() if us} == pytest.approx(expected, abs=2e-6)
        told = {part["name"]: part["bytes"][point] for part in data["memory_parts"]}
        assert {name: n for name, n in told.items() if n} == {part["name"]: part["bytes"] for part in memory_parts(plan)}


def test_the_sentences_of_every_point_are_those_of_its_plan(detailed, data):
    frontier, seen = read_frontier(detailed), 0
    told = next(each["plan"] for each in frontier.value["details"]["baselines"] if "plan" in each)
    theirs = {op["name"]: op["config"] for op in told["stages"][0]["operators"]}
    for number, view in data["views"].items():
        plan = frontier.plan(int(number))
        first, peak, beside, *differing = view["sentences"]
        assert first.startswith(f"Layer {layer_costs(*plan.stages)[0]['name']} takes the most time: ")
        assert f"instruction {view['memory']['peak_instruction'] + 1} of" in peak
        assert beside.startswith(f"Data parallelism would take {time_text(told['time_us'])} per step (")
        made = sum(op.get("is_rematerialized", False) and op["type"] not in SOURCES for op in plan.operators)
        gathered = sum(row.get("is_regathered", False) for row in plan.stages[0].reshardings)
        if made or gathered:
            assert differing.pop().startswith(f"It computes {made} operator")
        differ = sum(op["config"] != theirs[op["name"]] for op in plan.operators)
        assert sum(int(each.split()[0]) for each in differing if each[0].isdigit()) == differ
        assert len(differing) <= MOST_DIFFERENCES + 1
        seen += len(differing)
    assert seen > 10


def test_the_points_are_those_of_the_frontier(found, data):
    costs = found.costs
    assert data["points"]["sum_bytes"] == costs.mem_bytes.tolist()
    np.testing.assert_allclose(data["points"]["time_us"], costs.time_ns / 1e3)
    assert data["points"]["peak_bytes"] == [found.peak_json(i)["peak_bytes"] for i in range(len(found))]
    assert data["turning_point"] == found.turning_number and data["chosen"] == len(found) - 2
    assert 0 < data["peak_bound"]["mem_bytes"] <= min(data["points"]["peak_bytes"])
    assert data["peak_bound"]["time_ns"] <= costs.time_ns.min()
    names = [each["name"] for each in data["baselines"]]
    assert names == ["data-parallel", "optcnn", "tofu", "mesh-tensorflow"]
    optcnn = data["baselines"][1]["points"][0]
    assert optcnn["time_us"] == pytest.approx(found.fastest().time_us)


def test_a_step_is_the_simulated_one_and_its_memory_has_the_peak(found, data):
    (found,) = found.without_stages
    assert set(map(int, data["views"])) == set(range(len(found)))
    for number, view in data["views"].items():
        point, timeline, memory = int(number), view["timeline"], view["memory"]
        assert timeline["makespan_ns"] == found.simulated_ns(point)
        tasks = tasks_of(timeline)
        assert max(task[2] + task[3] for task in tasks) == timeline["makespan_ns"]
        peak = found.peak(point)
        assert memory["peak_bytes"] == peak.n_bytes == sum(memory["peak_by_use"].values())
        totals = np.sum(list(memory["by_use"].values()), axis=0)
        assert totals.max() == peak.n_bytes
        assert peak.instruction in memory["instants"]
        compute = sum(task[3] for task in tasks if task[1] == 0)
        assert compute == pytest.approx(found.points[point].compute_time_us * 1e3, abs=len(tasks))


def test_another_choice_is_the_cheapest_of_all_with_the_copies_around_it(found, data):
    (found,) = found.without_stages
    problem, built = found.built.problem, found.built
    seen = 0
    for number, view in data["views"].items():
        point = int(number)
        states = [int(state) for state in found.found.strategies[point]]
        before, ns_per_byte = problem.cost(states), _slope(found, point)
        told = [(each["type"], each["config"], each["time_us"]) for each in view["decisions"]]
        assert len(set(told)) == len(told) and all(each["alike"] >= 0 for each in view["decisions"])
        for each in view["decisions"][:4]:
            node = next(i for i, (group, _) in enumerate(built.nodes) if group.operators[0].name == each["operator"])
            ends = [{edge.source, edge.target} for edge in problem.edges]
            copies = sorted({i for pair in ends if node in pair for i in pair if i >= len(built.nodes)})
            weighed = []
            for chosen in itertools.product(*(range(problem.nodes[i].n_states) for i in (node, *copies))):
                changed = list(states)
                for i, state in zip((node, *copies), chosen, strict=True):
                    changed[i] = state
                mem_bytes, time_ns = problem.cost(changed)
                if chosen[0] != states[node] and max(mem_bytes, time_ns) < INFEASIBLE:
                    weighed.append(time_ns - before[1] + ns_per_byte * (mem_bytes - before[0]))
            other = each["other"]
            assert (other is None) == (not weighed)
            if other is not None:
                seen += 1
                told = other["time_us"] * 1e3 + ns_per_byte * other["sum_bytes"]
                assert told == pytest.approx(min(weighed), abs=1e-3)
                # The point is Pareto-minimal: another choice doesn't win in both.
                assert other["sum_bytes"] > 0 or other["time_us"] >= 0
    assert seen > 10


def test_which_points_have_their_step_stored():
    assert thinned(5, {2}, 20, 19) == [0, 1, 2, 3, 4]
    stored = thinned(6000, {17, 5999}, 20, 18)
    assert len(stored) <= 20 and {0, 17, 5999} <= set(stored)


def test_the_embedded_data_is_that_of_json(detailed, tmp_path, capsys, data):
    output, file = tmp_path / "out.html", tmp_path / "out.json"
    assert main(["report", str(detailed), "-o", str(output), "--json", str(file)]) == 0
    assert f"wrote {output}" in capsys.readouterr().out
    read = Data(output.read_text())
    assert json.loads(read.text) == json.loads(file.read_text()) == json.loads(json.dumps(data))
    assert main(["report", str(detailed), "-o", str(output), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(read.text)
    # Nothing is fetched.
    assert not [attrs for tag, attrs in read.elements if attrs.get("src") or (tag == "link" and attrs["href"] != "data:,")]


def test_a_plan_and_a_frontier_write_their_reports(found, plan_file, tmp_path):
    tensoropt.load_plan(plan_file).report(tmp_path / "plan.html")
    told = json.loads(Data((tmp_path / "plan.html").read_text()).text)
    plan = read_points(plan_file).plan(0)
    assert told["points"]["time_us"] == [plan.value["time_us"]] and told["views"] == {}
    assert told == json.loads(json.dumps(report_data(frontier_of_stage(plan), "plan.html")))
    found.turning_point().report(tmp_path / "live.html")
    told = json.loads(Data((tmp_path / "live.html").read_text()).text)
    assert told["chosen"] == found.turning_number and len(told["views"]) == len(found)


HOSTILE = "</script><img src=x onerror=alert(1)>&<!--"


def hostile(frontier: FrontierRows) -> FrontierRows:
    """The frontier with a hostile name for an operator, a layer, a tensor, a source file and the hardware."""
    text = json.dumps(frontier.value)
    names = sorted({part["name"] for part in frontier.value["searches"][0]["operators"]}, key=len, reverse=True)
    value = json.loads(text)
    value["hardware"] = value["summary"] = HOSTILE
    renamed = {name: f"{HOSTILE}/{name}" for name in names}
    for part in value["searches"][0]["operators"]:
        part["name"] = renamed[part["name"]]
    for part in value["searches"][0]["reshardings"]:
        for row in part["pool"]:
            row["consumers"] = [renamed.get(name, name) for name in row["consumers"]]
            row["tensor"] = HOSTILE + row["tensor"]
    value["details"]["sources"] = dict.fromkeys(renamed.values(), HOSTILE + ":1")
    value["details"]["model"] = HOSTILE
    for (view,) in value["details"]["views"].values():
        view["timeline"]["operators"] = [HOSTILE + name for name in view["timeline"]["operators"]]
        view["memory"]["runs"] = [HOSTILE + runs for runs in view["memory"]["runs"]]
        for each in view["decisions"]:
            each["operator"] = each["source"] = HOSTILE
    return FrontierRows(value)


def test_no_name_ends_the_data_or_becomes_an_element(detailed):
    data = report_data(hostile(read_frontier(detailed)), HOSTILE)
    text = page(data).decode()
    read = Data(text)
    assert json.loads(read.text) == json.loads(json.dumps(data))
    assert HOSTILE not in text.replace("\\u003c", "") and not [tag for tag, _ in read.elements if tag == "img"]
    title = text.partition("<title>")[2].partition("</title>")[0]
    assert title.startswith("&lt;/script&gt;&lt;img")


def test_bad_input_gets_one_sentence(detailed, plan_file, tmp_path, capsys, monkeypatch):
    cut = tmp_path / "cut.json"
    cut.write_text(detailed.read_text()[:1000])
    damaged = tmp_path / "damaged.json"
    damaged.write_text(plan_file.read_text().replace('"time_us"', '"time"'))
    check = tmp_path / "check.json"
    check.write_text("{}")
    changed, old = tmp_path / "changed.json", tmp_path / "old.json"
    changed.write_text(detailed.read_text().replace('"network_time_us"', '"network_us"'))
    old.write_text(detailed.read_text().replace(f'"version": {FRONTIER[1]}', '"version": 2', 1))
    row, no_timeline = {"name": "step", "predicted": 1.0, "measured": 1.0}, tmp_path / "no_timeline.json"
    whole = {"format": "tensoropt/check", "version": 2, **dict.fromkeys(COMPARED, row)}
    no_timeline.write_text(json.dumps(whole))
    timeline = {"makespan_ns": 1, "devices": [[0]], "operators": [], "kinds": [], "tasks": ""}
    another, wrong = tmp_path / "another.json", tmp_path / "wrong.json"
    another.write_text(json.dumps({**whole, "timeline": timeline}))
    wrong.write_text(json.dumps({**whole, "timeline": {**timeline, "tasks": "0,0,0,1,7,0"}}))
    measured = [plan_file, "-o", tmp_path / "x.html", "--measured"]
    cases = [
        ([*measured, no_timeline], "no_timeline.json' is damaged (KeyError: 'timeline')"),
        ([*measured, another], "another.json' ran a plan of 1.0 us, expected one of those that the report shows"),
        ([*measured, wrong], "wrong.json' is damaged (IndexError"),
        ([cut], "is not whole JSON"),
        ([damaged], "is damaged (KeyError: 'time_us')"),
        ([check], "is not a plan or a frontier: got format None"),
        ([changed], "was changed since it was saved"),
        ([old], f"has version 2, expected {FRONTIER[1]}; make it again"),
        ([tmp_path / "none.json"], "can't be read: No such file"),
        ([plan_file, "-o", tmp_path / "no" / "x.html"], "report can't be saved as"),
        ([plan_file, "-o", tmp_path], "that is a folder"),
        ([plan_file, "-o", plan_file], "the report would replace"),
        ([plan_file, "-o", tmp_path / "x.html", "--measured", check], "is not a check"),
        ([plan_file, "-o", tmp_path / "x.html", "--curve", plan_file], "is not a curve"),
    ]
    for arguments, sentence in cases:
        assert sentence in refused(capsys, "report", *arguments), arguments
    monkeypatch.setattr("tensoropt.report.pages.page.LIBRARY", "a_library_that_is_not_there")
    said = refused(capsys, "report", plan_file, "-o", tmp_path / "x.html")
    assert "a report needs Plotly; install it: pip install plotly" in said
    assert not (tmp_path / "x.html").exists()
