"""A frontier, its file, and a copy of the file."""

from __future__ import annotations

from pathlib import Path

import pytest
from plan.frontiers import frontier_of, two_layers


@pytest.fixture(scope="module")
def found():
    return frontier_of(two_layers)


@pytest.fixture(scope="module")
def whole(found, tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("frontier") / "frontier.json"
    found.save(file)
    return file


@pytest.fixture
def file(whole, tmp_path) -> Path:
    copy = tmp_path / "frontier.json"
    copy.write_bytes(whole.read_bytes())
    return copy
