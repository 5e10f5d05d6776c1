"""A frontier that was searched, its file, and the file of one of its plans."""

from __future__ import annotations

from pathlib import Path

import pytest
from plan.frontiers import frontier_of, two_layers

from tensoropt.report.frontier_rows import FrontierRows
from tensoropt.report.reading import read_frontier


@pytest.fixture(scope="session")
def found():
    return frontier_of(two_layers)


@pytest.fixture(scope="session")
def frontier_file(found, tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("report") / "frontier.json"
    found.save(file)
    return file


@pytest.fixture(scope="session")
def frontier(frontier_file) -> FrontierRows:
    return read_frontier(frontier_file)


@pytest.fixture(scope="session")
def plan_file(found, frontier_file) -> Path:
    file = frontier_file.with_name("plan.json")
    found.turning_point().save(file)
    return file
