"""docs/reference/paper.md quotes what the benchmark that draws the paper's figures has printed."""

import json
import re
from pathlib import Path

import pytest
from benchmarks.paper_figures import NUMBERS, table_of

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "paper.md").read_text()


@pytest.mark.parametrize("name", ["8", "table4"])
def test_the_page_has_the_tables_of_the_numbers(name):
    figures = json.loads(NUMBERS.read_text())["figures"]
    quoted = [block.strip() for block in re.findall(r"```\n(.*?)```", PAGE, re.DOTALL)]
    assert table_of(name, figures[name]).strip() in quoted


def test_the_page_shows_all_pictures():
    pictures = sorted(NUMBERS.parent.glob("paper_*.png"))
    assert sorted(re.findall(r"\(\.\./figures/(paper_\w+\.png)\)", PAGE)) == [picture.name for picture in pictures]
    assert len(pictures) == 5
    assert all(picture.stat().st_size < 150_000 for picture in pictures)
