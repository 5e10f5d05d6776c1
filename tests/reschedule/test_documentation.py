"""The page on rescheduling prints what it says it prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-it-works" / "resharding.md"


def test_the_example_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    [program] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    [output] = re.findall(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(program, {})
    assert capsys.readouterr().out == output
