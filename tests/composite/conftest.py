"""Graphs run as they are built: TensorFlow's graph optimizer would take most of the time. It is on between processes."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _graphs_as_built(graphs_as_built: None) -> None:
    pass
