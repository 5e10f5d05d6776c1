"""Take a picture of a report in Chromium: ``python docs/figures/report.py REPORT.html[#SECTION] OUT.png [WIDTH HEIGHT]``."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright


def main() -> None:
    file, _, section = sys.argv[1].partition("#")
    report, picture = Path(file).resolve(), Path(sys.argv[2]).resolve()
    width, height = map(int, sys.argv[3:5]) if len(sys.argv) > 3 else (1200, 900)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        size = {"width": width, "height": height}
        page = browser.new_context(viewport=size, offline=True, reduced_motion="reduce").new_page()
        page.goto(report.as_uri())
        page.wait_for_selector("html[data-drawn][data-step]")
        if section:
            page.evaluate("id => document.getElementById(id).scrollIntoView()", section)
        page.screenshot(path=picture, full_page=len(sys.argv) <= 3)
        browser.close()


if __name__ == "__main__":
    main()
