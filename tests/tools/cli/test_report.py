"""``search`` and ``compare`` with ``--report``: what they write, and what bad input gets before the search."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.commands import refused
from report.test_report import Data

import tensoropt
from tensoropt.tools.cli.main import main

GOOD = f"{Path(__file__).with_name('models.py')}:good"


def data_of(file: Path) -> dict:
    return json.loads(Data(file.read_text()).text)


def test_search_writes_a_report_of_what_its_frontier_holds(tmp_path, capsys):
    file, page = tmp_path / "frontier.json", tmp_path / "page.html"
    arguments = ["search", GOOD, "--devices", "4", "--frontier", str(file), "--report", str(page)]
    assert main([*arguments, "--baselines", "data-parallel,mcmc", "--seconds", "1"]) == 0
    assert f"wrote {page}" in capsys.readouterr().out
    data, frontier = data_of(page), tensoropt.load_frontier(file)
    assert data["model"] == "models.py:good" and [each["name"] for each in data["baselines"]] == ["data-parallel", "mcmc"]
    assert data["points"]["time_us"] == [point.time_us for point in frontier] and data["chosen"] == len(frontier) - 1
    assert data["views"][str(data["chosen"])]["memory"]["peak_bytes"] == frontier.peak_bytes(data["chosen"])
    # The file has all that the page shows, and keeps it when it is saved again.
    frontier.save(tmp_path / "again.json")
    assert main(["report", str(tmp_path / "again.json"), "-o", str(tmp_path / "again.html")]) == 0
    again = data_of(tmp_path / "again.html")
    assert {**again, "title": ""} == {**data, "title": ""}


def test_compare_writes_a_report_with_its_baselines(tmp_path, capsys):
    page, file = tmp_path / "page.html", tmp_path / "compared.json"
    assert main(["compare", GOOD, "--devices", "4", "--report", str(page), "--json", str(file)]) == 0
    data, compared = data_of(page), json.loads(file.read_text())
    told = {each["algorithm"]: [point["time_us"] for point in each["points"]] for each in compared["algorithms"]}
    shown = {each["name"]: [point["time_us"] for point in each["points"]] for each in data["baselines"]}
    assert shown == {name: times for name, times in told.items() if name != "ft-ldp"} and len(shown) == 5
    assert data["points"]["time_us"] == told["ft-ldp"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [(["--baselines", "alpa"], "--baselines takes names of data-parallel, one-weird-trick, optcnn"),
     (["--option", "profiling", "--report", "x.html"], "makes a curve and no report"),
     (["--report", "no/x.html"], "report can't be saved as"),
     (["--report", "x.html", "--json", "x.html"], "name the same file")],
)  # fmt: skip
def test_bad_input_gets_one_sentence_before_the_search(arguments, sentence, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sentence in refused(capsys, "search", GOOD, "--devices", 4, *arguments)
    assert not list(tmp_path.iterdir())


def test_without_plotly_the_sentence_comes_before_the_search(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tensoropt.report.pages.page.LIBRARY", "a_library_that_is_not_there")
    page = tmp_path / "page.html"
    assert "a report needs Plotly; install it" in refused(capsys, "search", GOOD, "--devices", 4, "--report", page)
