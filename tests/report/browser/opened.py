"""A report that is open in a browser, with the network cut."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page

from tensoropt.common.memory_units import memory_text
from tensoropt.report.sentences import time_text

AXE = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}}


PATIENCE_MS = 120_000
"""A browser that starts while other tests have all cores has taken more than Playwright's 30 seconds to show a file."""


class Opened:
    """A page, and what its console said."""

    def __init__(self, browser, file: Path, width: int = 1200, scheme: str = "light") -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True, reduced_motion="reduce"
        )
        self.context.set_default_timeout(PATIENCE_MS)
        self.page: Page = self.context.new_page()
        self.said: list[str] = []
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.said.append(request.url) if request.url != file.as_uri() else None)
        self.page.goto(file.as_uri())
        self.page.wait_for_selector("html[data-drawn]")

    def close(self) -> None:
        """Close the page; nothing was said, and nothing asked for but images that the page holds itself."""
        self.context.close()
        assert [text for text in self.said if not text.startswith(("data:", "blob:"))] == []

    def card(self, name: str) -> str:
        return self.page.inner_text(f"#card-{name}")

    def shows(self, data, point: int) -> None:
        points = data["points"]
        assert self.card("point") == f"{point + 1} of {len(points['time_us'])}"
        assert self.card("papers-sum") == memory_text(points["sum_bytes"][point])
        assert self.card("memory-per-device") == memory_text(points["peak_bytes"][point])
        assert self.card("time-per-step") == time_text(points["time_us"][point])
        assert self.card("compute") == time_text(points["compute_time_us"][point])
        assert self.card("network") == time_text(points["network_time_us"][point])
        for bars, key, whole, text in (
            ("time-bars", "time_parts", "time_us", time_text), ("memory-bars", "memory_parts", "sum_bytes", memory_text),
        ):  # fmt: skip
            rows = self.page.locator(f"#{bars} tr").all_inner_texts()
            amount = {"time_us": "time_us", "sum_bytes": "bytes"}[whole]
            parts = sorted((part[amount][point] for part in data[key]), reverse=True)
            assert rows[0].split("\t")[2].strip() == text(parts[0])
            assert rows[-1].split("\t")[2].strip() == text(points[whole][point])
        by_use = data["views"][str(point)]["memory"]["peak_by_use"]
        rows = [row.split("\t") for row in self.page.locator("#peak-use-bars tr").all_inner_texts()]
        told = {row[0].strip(): row[2].strip() for row in rows}
        assert told.pop("peak of a step") == memory_text(points["peak_bytes"][point]) == memory_text(sum(by_use.values()))
        assert told == {use: memory_text(n_bytes) for use, n_bytes in by_use.items() if n_bytes}
