"""Take a picture of a report in Chromium: ``python docs/figures/report.py REPORT.html OUT.png [WIDTH HEIGHT]``."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright


def main() -> None:
    report, picture = (Path(each).resolve() for each in sys.argv[1:3])
    width, height = map(int, sys.argv[3:5]) if len(sys.argv) > 3 else (1200, 900)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_context(viewport={"width": width, "height": height}, offline=True).new_page()
        page.goto(report.as_uri())
        page.wait_for_selector("html[data-drawn]")
        page.screenshot(path=picture, full_page=len(sys.argv) <= 3)
        browser.close()


if __name__ == "__main__":
    main()
