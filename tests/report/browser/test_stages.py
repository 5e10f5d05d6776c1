"""A report of a plan with stages in a real browser: the step of all stages, and the plan of the one that is chosen."""

from __future__ import annotations

from collections import Counter

import accumulate.models as models
import pytest
from axe_playwright_python.sync_playwright import Axe
from helpers.searches import find_with_stages
from pipeline.test_staged_frontier import hardware
from report.browser.opened import AXE, Opened
from report.test_report import HOSTILE

from tensoropt.common.memory_units import memory_text
from tensoropt.ft import Budget
from tensoropt.profiling.hardware import named
from tensoropt.report.pages.page import write_report
from tensoropt.report.pages.plan_page import plan_report
from tensoropt.report.plan_rows import PlanRows
from tensoropt.report.sentences import time_text
from tensoropt.search.options import find_answer
from tensoropt.search.request import Request


@pytest.fixture(scope="module")
def plan():
    model, hardware = models.recorded("mlp", "adam").model, named("v100-1x4")
    return find_answer("mini_time", Request(model, hardware, None, budget=Budget(seconds=0), stages=(2,)), 4)


def test_the_step_of_all_stages_is_drawn_and_each_stage_can_be_chosen(browser, plan, tmp_path, everything):
    plan.report(tmp_path / "plan.html")
    opened = Opened(browser, tmp_path / "plan.html")
    page = opened.page
    assert page.inner_text("#stages-lead").startswith("point: 2 stages on 4 devices")
    drawn = page.evaluate("document.getElementById('stages-chart').data.map((trace) => [trace.name, trace.x.length / 4])")
    n = plan.micro_batches
    assert {"forward": 2 * n, "backward": 2 * n}.items() <= dict(drawn).items()
    lanes = page.evaluate("document.getElementById('stages-chart').layout.yaxis.ticktext")
    assert {"compute 0..1", "compute 2..3"} <= set(lanes)
    rows = [row.split("\t") for row in page.locator("#stages-table tbody tr").all_inner_texts()]
    for row, stage in zip(rows, plan.stages, strict=True):
        assert row[1].strip() == "..".join(map(str, stage.devices))
        told = [str(stage.in_flight), str(stage.deferred), memory_text(stage.peak_bytes), time_text(stage.time_us)]
        assert [cell.strip() for cell in row[3:7]] == told
    for number, stage in enumerate(plan.stages):
        page.focus(f"#stages-table tbody tr:nth-child({number + 1}) button")
        page.keyboard.press("Enter")
        assert page.get_attribute("#stages-table button:focus", "aria-pressed") == "true"
        assert f"stage {number}, one of 2" in page.inner_text("#subtitle")
        assert opened.card("time-per-step") == time_text(stage.time_us)
        assert opened.card("memory-per-device") == memory_text(stage.peak_bytes)
        kernel = next(op for op in stage.operators if op.type == "Variable")
        page.fill("#search", kernel.name)
        page.locator("#rows .inner button").first.click()
        bounds = {}
        for rank in stage.devices:
            page.fill("#rank", str(rank))
            bounds[rank] = page.inner_text("#held").removeprefix(f"rank {rank} holds ")
        shape = next(each.result.shape for each in stage.frontier.model.graph.variables if each.name == kernel.name)
        for local, rank in enumerate(stage.devices):
            held = kernel.results[0].bounds(shape, local)
            assert bounds[rank] == f"[{', '.join(f'{begin}:{end}' for begin, end in held)}]"
        assert page.is_visible("#memory-chart") and page.locator("#decisions tbody tr").count() > 0
    for scheme in ("light", "dark")[: 2 if everything else 1]:
        assert page.get_attribute("html", "data-scheme") == scheme
        found = Axe().run(page, options=AXE).response["violations"]
        assert [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in found] == []
        page.click("#scheme")
    page.set_viewport_size({"width": 400, "height": 900})
    page.wait_for_function("document.documentElement.scrollWidth <= 400")  # charts follow a little later
    opened.close()


def test_a_point_of_a_frontier_with_stages_is_chosen_by_the_pages_address(browser, tmp_path, everything):
    model = models.recorded("mlp", "adam").model
    request = Request(model, hardware(1e-3), None, budget=Budget(seconds=0), micro_batches=4)
    found, file = find_with_stages(request, 4, (1, 2)), tmp_path / "frontier.html"
    found.report(file)
    opened = Opened(browser, file)
    page, last = opened.page, len(found) - 1
    rows = [row.split("\t") for row in page.locator("#points-table tbody tr").all_inner_texts()]
    numbers = [int(row[0].split()[1].rstrip(",")) - 1 for row in rows]
    assert {0, last} <= set(numbers)
    for row, number in zip(rows, numbers, strict=True):
        point = found.points_of[number]
        assert row[1].strip() == ("none" if point.n_stages == 1 else str(point.n_stages))
        assert [row[3].strip(), row[4].strip()] == [memory_text(point.peak_bytes), time_text(found.points[number].time_us)]
    marks = page.evaluate("document.getElementById('points-chart').data.map((trace) => [trace.name, trace.x.length])")
    counts = Counter(point.n_stages for point in found.points_of)
    assert {"without stages": counts[1], "2 stages": counts[2]}.items() <= dict(marks[1:]).items()
    assert {"data-parallel", "optcnn", "tofu", "mesh-tensorflow"} <= dict(marks).keys()
    assert page.inner_text("#points-lead").startswith(f"Point {last + 1} of {last + 1} is shown below")
    assert not everything or not Axe().run(page, options=AXE).response["violations"]
    for number in (0, last):
        page.click(f"#points-table a[href='?point={number + 1}']")
        page.wait_for_selector(f"html[data-drawn] a[aria-current][href='?point={number + 1}']")
        assert page.get_attribute("#points-table a[aria-current]", "href") == f"?point={number + 1}"
        is_staged = found.points_of[number].n_stages > 1
        assert page.is_visible("#stages") == is_staged
        assert page.locator("#stages-table tbody tr").count() == (2 if is_staged else 0)
    opened.said = [text for text in opened.said if not text.startswith(file.as_uri())]
    opened.close()


def test_names_of_stages_that_are_html_are_shown_as_text(browser, plan, tmp_path):
    value = plan.to_json()
    value["option"] = value["stages"][0]["last_operator"] = HOSTILE
    value["timeline"] = {**value["timeline"], "operators": [HOSTILE] * len(value["timeline"]["operators"])}
    write_report(plan_report(PlanRows(value), HOSTILE), tmp_path / "hostile.html")
    opened = Opened(browser, tmp_path / "hostile.html")
    page = opened.page
    page.on("dialog", lambda dialog: opened.said.append(f"dialog {dialog.message}"))
    assert HOSTILE in page.inner_text("#stages-table") and HOSTILE in page.inner_text("#stages-lead")
    page.evaluate("Plotly.Fx.hover('stages-chart', [{curveNumber: 0, pointNumber: 0}])")
    assert HOSTILE in (page.text_content("#stages-chart .hoverlayer") or "")
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    opened.close()
