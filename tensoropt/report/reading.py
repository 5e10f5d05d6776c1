"""Read the files that can be explained: plans, frontiers and curves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..common.errors import InputError, cut
from ..common.files import read_json_of, reading_value
from ..common.formats import CURVE, FRONTIER, PLAN
from .frontier_rows import FrontierRows, checked_value
from .plan_rows import PlanRows, device_bytes_of

_KINDS = {"plan": PLAN, "frontier": FRONTIER, "curve": CURVE}
File = str | os.PathLike[str]


def read_rows(file: File, *kinds: str) -> PlanRows | FrontierRows | dict[str, Any]:
    """Read a file of one of some kinds: ``plan``, ``frontier`` and ``curve``, which stays a JSON value.

    Raises:
        InputError: the file can't be read, is cut off, changed, of another kind or version, or a plan with stages.
    """
    kind, value = read_json_of(file, {kind: _KINDS[kind] for kind in kinds})
    if kind == "curve":
        return value
    if kind == "plan" and "stages" in value:
        raise InputError(
            f"plan '{cut(file)}' has stages, expected one without; what its stages are, "
            "print(tensoropt.load_plan(file)) says"
        )
    if kind == "plan":
        with reading_value(kind, file):
            plan = PlanRows(value)
            _ = plan.mesh, plan.operators, plan.reshardings, plan.device_bytes
            return plan
    whole = checked_value(value, file)
    with reading_value(kind, file):
        device_bytes_of(whole["assumed"])
        return FrontierRows(whole)


def read_frontier(file: File) -> FrontierRows:
    """Read a frontier; see :func:`read_rows`."""
    frontier = read_rows(file, "frontier")
    assert isinstance(frontier, FrontierRows)
    return frontier


def is_of_these(name: str) -> bool:
    """Return whether an argument names a file of these, and not a model."""
    return Path(name).suffix == ".json"
