"""Read the files that can be explained: plans, frontiers and curves."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

from ..common.files import read_json_of, reading_value
from ..common.formats import CURVE, FRONTIER, PLAN
from .checksum import check_signed
from .frontier_rows import FrontierRows
from .plan_rows import PlanRows, device_bytes_of

_KINDS = {"plan": PLAN, "frontier": FRONTIER, "curve": CURVE}
File = str | os.PathLike[str]


def read_rows(file: File, *kinds: str) -> PlanRows | FrontierRows | dict[str, Any]:
    """Read a file of one of some kinds: ``plan``, ``frontier`` and ``curve``, which stays a JSON value.

    Raises:
        InputError: the file can't be read, is cut off, changed, or of another kind or version.
    """
    checks = {"frontier": partial(check_signed, "frontier", file)}
    kind, value = read_json_of(file, {kind: _KINDS[kind] for kind in kinds}, checks)
    if kind == "curve":
        return value
    with reading_value(kind, file):
        if kind == "plan":
            plan = PlanRows(value)
            plan.check()
            return plan
        device_bytes_of(value["assumed"])
        return FrontierRows(value)


def read_explained(file: File) -> PlanRows | FrontierRows:
    """Read a plan or a frontier; see :func:`read_rows`."""
    rows = read_rows(file, "plan", "frontier")
    assert not isinstance(rows, dict)
    return rows


def read_frontier(file: File) -> FrontierRows:
    """Read a frontier; see :func:`read_rows`."""
    frontier = read_rows(file, "frontier")
    assert isinstance(frontier, FrontierRows)
    return frontier


def is_of_these(name: str) -> bool:
    """Return whether an argument names a file of these, and not a model."""
    return Path(name).suffix == ".json"
