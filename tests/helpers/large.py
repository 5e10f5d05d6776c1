"""Parameters of which most are only held by ``--all``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first(n: int, cases: Iterable[Any]) -> list[Any]:
    """Return these parameters, all but the first ``n`` marked as large."""
    return [case if i < n else _large(case) for i, case in enumerate(cases)]


def _large(case: Any) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.large)
