"""The pages on rules and operators say what the rules are, and print what they say they print."""

from __future__ import annotations

import re

import pytest

from . import documentation, missing
from .cases import CASES

RULES = documentation.DOCS / "how-it-works" / "rules.md"


LARGE = pytest.param("missing", marks=pytest.mark.large)


@pytest.mark.parametrize("name", [LARGE if name == "missing" else name for name in documentation.TABLES])
def test_tables_are_up_to_date(name: str) -> None:
    """``python tests/rules/documentation.py`` writes them again; a split that is newly missing needs a reason."""
    path, table = documentation.TABLES[name]
    assert documentation.section(path.read_text(), name) == table()


def test_every_missing_split_has_a_reason_and_every_reason_a_case() -> None:
    page = documentation.section(RULES.read_text(), "missing")
    assert "no reason is known" not in page
    labels = {label for row in page.splitlines() for label in row.split(" | ")[0].removeprefix("| ").split(", ")}
    assert set(missing.REASONS) <= labels & {case.label for case in CASES}


def test_the_example_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    page = RULES.read_text()
    [program] = re.findall(r"```python\n(import.*?)```", page, re.DOTALL)
    [output] = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    exec(program, {})
    assert capsys.readouterr().out == output
