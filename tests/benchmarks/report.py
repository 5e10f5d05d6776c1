"""Print how large a report is and how fast it is shown: ``python tests/benchmarks/report.py FRONTIER.json``.

It needs Chromium. A click is timed in the page, from the selection of a point until the page is laid out; the two charts of
the step follow after it.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright
from tabulate import tabulate

from tensoropt.report.pages.page import write_report
from tensoropt.report.pages.page_data import report_data
from tensoropt.report.reading import read_frontier

CLICK = "at => { const t = performance.now(); select(at); document.body.offsetHeight; return performance.now() - t; }"
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
CLICKS = 12


def main() -> None:
    started = time.process_time()
    frontier = read_frontier(sys.argv[1])
    read = time.process_time()
    data = report_data(frontier, Path(sys.argv[1]).name)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "report.html"
        write_report(data, file)
        written = time.process_time()
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_context(offline=True).new_page()
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-drawn][data-step]")
        stored = [int(point) for point in data["views"]]
        others = [point for point in range(0, len(frontier), max(1, len(frontier) // CLICKS)) if point not in stored]
        with_step, without = (sorted(page.evaluate(CLICK, at) for at in those[:CLICKS] or [0]) for those in (stored, others))
        rows = [
            ["points, operators", f"{len(frontier)}, {len(data['operators'])}"],
            ["read, CPU s", f"{read - started:.2f}"],
            ["written, CPU s", f"{written - read:.2f}"],
            ["file, MB", f"{file.stat().st_size / 1e6:.1f}"],
            ["of it data, MB", f"{len(json.dumps(data, separators=(',', ':'))) / 1e6:.1f}"],
            ["first paint, ms", f"{page.evaluate(PAINT):.0f}"],
            ["click, ms, median and most", f"{without[len(without) // 2]:.0f}, {without[-1]:.0f}"],
            ["... at a point whose step is stored", f"{with_step[len(with_step) // 2]:.0f}, {with_step[-1]:.0f}"],
        ]
        print(tabulate(rows, disable_numparse=True))
        browser.close()


if __name__ == "__main__":
    main()
