"""The page on loops prints what it says it prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-it-works" / "loops.md"


def test_the_example_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    page = PAGE.read_text()
    [program] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    [output] = re.findall(r"prints\n```text\n(.*?)```", page, re.DOTALL)
    exec(program, {})
    assert capsys.readouterr().out == output
