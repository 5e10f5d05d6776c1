"""What the pages of `docs/` name is there: tests, benchmarks, other pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")])
SCRIPT = re.compile(r"\b(?:tests|examples)/[\w/]+\.(?:py|sh)\b")
TEST = re.compile(r"(tests/[\w/]+\.py)?::(test_\w+)")
LINK = re.compile(r"\]\(([^)\s#]+\.md)(?:#[\w-]*)?\)")


def missing(page: Path, text: str) -> list[str]:
    """Return the scripts, tests and pages that a page names and that aren't there."""
    gone = [name for name in SCRIPT.findall(text) if not (ROOT / name).exists()]
    gone += [link for link in LINK.findall(text) if "://" not in link and not (page.parent / link).exists()]
    path = ""
    for match in TEST.finditer(text):
        path = match[1] or path
        if (ROOT / path).is_file() and f"def {match[2]}(" not in (ROOT / path).read_text():
            gone.append(f"{path}::{match[2]}")
    return gone


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_is_there(page: Path) -> None:
    assert not missing(page, page.read_text())


def test_what_is_not_there_is_seen() -> None:
    text = "`tests/common/test_documentation.py::test_nothing`, `::test_neither`, [a](no.md), tests/no/such.py"
    assert missing(ROOT / "README.md", text) == [
        "tests/no/such.py",
        "no.md",
        "tests/common/test_documentation.py::test_nothing",
        "tests/common/test_documentation.py::test_neither",
    ]
