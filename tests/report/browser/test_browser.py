"""The report in a real browser: Debian's Chromium, from disk, with the network cut."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from helpers.large import first
from playwright.sync_api import Page, TimeoutError
from report.browser.opened import AXE, Opened
from report.test_report import HOSTILE, hostile

from tensoropt.common.memory_units import memory_text
from tensoropt.report.pages.page import write_report
from tensoropt.report.pages.page_data import report_data
from tensoropt.report.pages.plan_page import measured_at
from tensoropt.report.reading import read_frontier
from tensoropt.reschedule.layout import Layout
from tensoropt.reschedule.mesh import Level, Mesh


@pytest.fixture(scope="module")
def detailed(found, frontier_file) -> Path:
    file = frontier_file.with_name("browsed.json")
    found.with_details("two_layers", len(found) - 1, baselines=("data-parallel",)).save(file)
    return file


@pytest.fixture(scope="module")
def data(detailed):
    frontier = read_frontier(detailed)
    predicted = frontier.points[0]["time_us"]
    measured = {"name": "step", "predicted": predicted, "measured": 1.25 * predicted}
    check = dict.fromkeys(("step_us", "compute_us", "network_us", "memory_bytes"), measured)
    tasks = "0,0,0,500,0,0;0,1,500,900,1,1;1,0,0,700,0,0"
    names = {"operators": ["MatMul", HOSTILE], "kinds": ["forward", "all_reduce"]}
    check["timeline"] = {"makespan_ns": 10**6, "devices": [[0], [1]], **names, "tasks": tasks}
    curve = [(1, 90.0), (2, 60.0), (4, 40.0)]
    points = [{"parallelism": n, "time_us": us, "peak_bytes": 1000 // n} for n, us in curve]
    seen = measured_at(frontier.points, check, "check.json")
    return report_data(frontier, "browsed.json", measured=seen, curve={"curve": points})


@pytest.fixture(scope="module")
def report(data, tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("browser") / "report.html"
    write_report(data, file)
    return file


def place_of(page: Page, point: int) -> tuple[float, float]:
    """Where a point of the frontier is on the screen."""
    x, y = page.evaluate(
        """point => {
            const chart = document.getElementById("frontier-chart");
            const trace = chart.data.find((each) => each.name === "frontier");
            const box = chart.getBoundingClientRect(), {xaxis, yaxis} = chart._fullLayout;
            const at = (axis, value) => axis._offset + axis.d2p(value);
            const i = trace.customdata.indexOf(point);
            return [box.left + at(xaxis, trace.x[i]), box.top + at(yaxis, trace.y[i])];
        }""",
        point,
    )
    return x, y


DRAWN = """() => {
    const traces = document.getElementById("frontier-chart").data;
    const frontier = traces.find((each) => each.name === "frontier");
    const x = [];
    frontier.customdata.forEach((point, i) => { x[point] = frontier.x[i]; });
    const others = Object.fromEntries(traces.filter((each) => each !== frontier).map((each) => [each.name, each.x]));
    return {x, others, axis: document.getElementById("frontier-chart").layout.xaxis.title.text};
}"""


def test_the_frontier_is_drawn_by_peak_and_by_the_sum_with_its_bound(browser, report, data):
    opened = Opened(browser, report)
    page, bound = opened.page, "no plan is below (certified)"
    of_peaks = "no plan is left of it or below (certified)"
    for axis, key, words in (("peak", "peak_bytes", "peak of a step"), ("sum", "sum_bytes", "memory")):
        page.check(f"input[name=axis][value={axis}]")
        drawn = page.evaluate(DRAWN)
        ratios = [x / n_bytes for x, n_bytes in zip(drawn["x"], data["points"][key], strict=True)]
        assert min(ratios) == pytest.approx(max(ratios)) and drawn["axis"].startswith(words)
        (baseline,) = data["baselines"]
        told = [x / point[key] for x, point in zip(drawn["others"]["data-parallel"], baseline["points"], strict=True)]
        assert told == pytest.approx([ratios[0]] * len(told))
        assert (bound in drawn["others"]) == (axis == "sum" and data["bound"] is not None)
        assert (of_peaks in drawn["others"]) == (axis == "peak")
        if axis == "peak":
            least = drawn["others"][of_peaks]
            assert least[0] == pytest.approx(ratios[0] * data["peak_bound"]["mem_bytes"]) and least[0] < min(drawn["x"])
    opened.close()


def test_a_plan_that_its_devices_cannot_hold_is_said_to(browser, data, tmp_path):
    peaks = data["points"]["peak_bytes"]
    largest = peaks.index(max(peaks))
    for limit, expected in ((min(peaks), "fits, with"), (min(peaks) - 1, "None of these plans fits")):
        file = tmp_path / f"{limit}.html"
        write_report({**data, "device_memory_bytes": max(peaks) - 1, "default_limit_bytes": limit}, file)
        opened = Opened(browser, file)
        opened.page.fill("#point", str(largest))
        said = opened.page.inner_text("#around")
        assert "it won't run there" in said and expected in said
        opened.page.fill("#point", str(peaks.index(min(peaks))))
        assert "it won't run there" not in opened.page.inner_text("#around")
        opened.close()


def test_points_limits_operators_and_steps_are_those_of_the_data(browser, report, data, everything):
    opened = Opened(browser, report)
    opened.shows(data, data["chosen"])
    check_clicks(opened, data, everything)
    fastest = check_limits(opened, data)
    check_search(opened.page)
    check_step(opened.page, data, fastest)
    check_measured_step(opened, data)
    opened.close()


def check_clicks(opened, data, everything):
    """A click on a point of the chart selects it; one by default."""
    page, count = opened.page, len(data["points"]["time_us"])
    page.locator("#frontier-chart").scroll_into_view_if_needed()
    selected = data["chosen"]
    for point in (count // 2, 0, count - 2)[: 3 if everything else 1]:  # which have nothing else near them on the screen
        # Charts that are still to be drawn move the page.
        page.wait_for_selector(f"html[data-step='{selected}']")
        assert any(_is_selected_by_a_click(page, point) for _ in range(CLICKS)), f"point {point} can't be selected"
        opened.shows(data, point)
        selected = point


CLICKS = 10
"""A chart that is drawn again just before a click forgets what the pointer is over, which happens on busy machines."""


def _is_selected_by_a_click(page: Page, point: int) -> bool:
    x, y = place_of(page, point)
    page.mouse.move(x - 2, y - 2)
    page.mouse.move(x, y)
    # Plotly looks at the pointer a few times a second, and a click selects what it saw last.
    is_seen = """point => {
        const chart = document.getElementById("frontier-chart");
        const trace = chart.data.find((each) => each.name === "frontier");
        return (chart._hoverdata || []).some((each) => each.x === trace.x[point] && each.y === trace.y[point]);
    }"""
    is_shown = "text => document.getElementById('card-point').textContent.startsWith(text)"
    try:
        page.wait_for_function(is_seen, arg=point, timeout=10_000)
        page.mouse.click(x, y)
        page.wait_for_function(is_shown, arg=f"{point + 1} of", timeout=10_000)
    except TimeoutError:
        return False
    return True


def check_limits(opened, data):
    """A limit selects the fastest plan whose peak is within it; return that plan's point."""
    page, points = opened.page, data["points"]
    limit = sorted(points["peak_bytes"])[len(points["peak_bytes"]) // 2]
    page.fill("#limit-text", str(limit))
    page.keyboard.press("Enter")
    fastest = min((us, i) for i, us in enumerate(points["time_us"]) if points["peak_bytes"][i] <= limit)[1]
    opened.shows(data, fastest)
    page.fill("#limit-text", "1")
    page.keyboard.press("Enter")
    assert page.inner_text("#limit-note") == f"no plan fits: the least is {memory_text(min(points['peak_bytes']))}"
    page.fill("#limit-text", "much")
    page.keyboard.press("Enter")
    assert "write an amount" in page.inner_text("#limit-note")
    return fastest


def check_search(page):
    """An operator is found, and tells what a rank holds."""
    page.fill("#search", "MatMul_1")
    rows = page.locator("#rows .inner")
    assert rows.count() == 1 and rows.first.inner_text().startswith("MatMul_1")
    rows.first.locator("button").click()
    assert "MatMul_1 (MatMul)" in page.inner_text("#operator") and "rank 0 holds [0:" in page.inner_text("#held")
    page.fill("#search", "")
    page.click("#headings button:has-text('memory')")
    assert page.get_attribute("#headings th:nth-child(4)", "aria-sort") == "descending"


def check_step(page, data, point):
    """A step's timeline and memory are drawn from its data."""
    view = data["views"][str(point)]
    page.wait_for_selector(f"html[data-step='{point}']")
    assert page.evaluate("document.getElementById('timeline-chart').data.length") == len(view["timeline"]["kinds"])
    assert page.evaluate("document.getElementById('memory-chart').data.length") == len(view["memory"]["by_use"])
    assert page.locator("#sentences li").all_inner_texts() == view["sentences"]
    assert page.locator("#decisions tbody tr").count() == len(view["decisions"])
    assert page.locator("#measured tbody tr").count() == 4 and "1.25" in page.inner_text("#measured")
    assert page.is_visible("#curve-chart")


def check_measured_step(opened, data):
    """The step that was measured stands above the predicted one, at the point whose plan ran, on one scale."""
    page = opened.page
    assert page.is_hidden("#measured-chart")
    page.click("#measured button")
    page.wait_for_selector("html[data-step='0']")
    opened.shows(data, 0)
    assert page.is_visible("#measured-chart") and HOSTILE not in page.inner_html("#measured-step")
    top = "id => document.getElementById(id).getBoundingClientRect().top"
    assert page.evaluate(top, "measured-chart") < page.evaluate(top, "timeline-chart")
    reach = "id => document.getElementById(id).layout.xaxis.range[1]"
    assert page.evaluate(reach, "measured-chart") == page.evaluate(reach, "timeline-chart")
    lengths = "document.getElementById('measured-chart').data.map((trace) => trace.x.length)"
    assert page.evaluate(lengths) == [8, 4]


def test_what_a_rank_holds_is_what_the_layout_says(browser, report, data):
    mesh = Mesh((Level("machine", 2), Level("device", 6)))
    axes = [{"name": "abc"[i], "size": size} for i, size in enumerate(mesh.sizes)]
    opened = Opened(browser, report)
    for text, shape in (("[ab, c]", (7, 11)), ("[-, ca] +b", (5, 13)), ("[cab]", (12,)), ("[]", ())):
        layout = Layout.parse(mesh, text)
        for rank in range(mesh.n_devices):
            asked = "([axes, text, shape, rank]) => heldBy(axes, parseLayout(text), shape, rank)"
            held = opened.page.evaluate(asked, [axes, text, list(shape), rank])
            assert [tuple(each) for each in held] == list(layout.bounds(shape, rank)), (text, rank)
    for n_bytes in (0, 1, 999, 1000, 123_456, 999_499, 999_500, 1_250_000, 15_999_999_999, 2**41):
        assert opened.page.evaluate("n => memoryText(n)", n_bytes) == memory_text(n_bytes)
    opened.close()


@pytest.mark.parametrize(("width", "scheme"), first(1, [(400, "dark"), (1600, "light")]))
def test_widths_and_schemes_have_no_violation_and_nothing_beyond_the_side(browser, report, width, scheme, everything):
    opened = Opened(browser, report, width, scheme)
    page = opened.page
    assert page.get_attribute("html", "data-scheme") == scheme
    page.wait_for_selector("html[data-step]")
    page.click("#unfold")
    page.locator("#rows .inner button").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    found = Axe().run(page, options=AXE).response["violations"]
    assert [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in found] == []
    page.click("#scheme")
    assert page.get_attribute("html", "data-scheme") != scheme
    found = Axe().run(page, options=AXE).response["violations"] if everything else []
    assert [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in found] == []
    opened.close()


def test_the_keyboard_reaches_everything(browser, report, data):
    opened = Opened(browser, report)
    page = opened.page
    seen = []
    for _ in range(14):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.getAttribute('href')"))
    assert seen[0] == "#frontier" and {"#plan", "scheme", "point", "limit", "limit-text", "search", "unfold"} <= set(seen)
    page.focus("#point")
    page.keyboard.press("Home")
    opened.shows(data, 0)
    page.keyboard.press("ArrowRight")
    opened.shows(data, 1)
    page.focus("#limit")
    page.keyboard.press("Home")
    points = data["points"]
    least = min(points["peak_bytes"])
    assert points["peak_bytes"][int(opened.card("point").split()[0]) - 1] == least
    page.focus("#search")
    page.keyboard.type("MatMul_1")
    while not page.evaluate("document.activeElement.closest('.inner')"):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.is_visible("#operator")
    opened.close()


def test_names_that_are_html_are_shown_as_text(browser, detailed, tmp_path):
    data = report_data(hostile(read_frontier(detailed)), HOSTILE)
    file = tmp_path / "hostile.html"
    write_report(data, file)
    opened = Opened(browser, file)
    page = opened.page
    page.on("dialog", lambda dialog: opened.said.append(f"dialog {dialog.message}"))
    page.click("#unfold")
    page.locator("#rows .inner button").first.click()
    assert page.inner_text("#title") == HOSTILE and page.title().startswith(HOSTILE)
    assert HOSTILE in page.inner_text("#operator")
    x, y = place_of(page, 3)
    page.mouse.move(x - 2, y - 2)
    page.mouse.move(x, y)
    page.wait_for_selector("html[data-step]")
    page.locator("#timeline-chart").scroll_into_view_if_needed()
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert json.loads(page.text_content("#tensoropt-data") or "") == json.loads(json.dumps(data))
    opened.close()
