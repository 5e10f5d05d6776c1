"""The pages on rules and operators say what the rules are."""

from __future__ import annotations

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
