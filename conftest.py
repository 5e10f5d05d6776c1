"""The examples in docstrings (``pytest --doctest-modules``): none goes on with the model that another one recorded."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _an_example_ends_its_recording(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    session = sys.modules.get("tensoropt.session.session")
    if isinstance(request.node, pytest.DoctestItem) and session is not None and session._current is not None:
        session._current._recording.close()
