"""Emulated graphs are large and run a few times, so they aren't optimised."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _graphs_as_built(graphs_as_built: None) -> None:
    pass
