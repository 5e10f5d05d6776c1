"""Read the files that can be explained: plans, frontiers and curves."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..common.errors import InputError, cut
from ..common.files import read_json_of, reading_value
from ..common.formats import CURVE, FRONTIER, PLAN
from .checksum import check_signed
from .frontier_rows import FrontierRows
from .plan_rows import PlanRows, device_bytes_of
from .stage_rows import StageRows
from .timelines import checked_timeline

_KINDS = {"plan": PLAN, "frontier": FRONTIER, "curve": CURVE}
File = str | os.PathLike[str]


def read_rows(file: File, *kinds: str) -> PlanRows | FrontierRows | dict[str, Any]:
    """Read a file of one of some kinds: ``plan``, ``frontier`` and ``curve``, which stays a JSON value.

    Raises:
        InputError: the file can't be read, is cut off, changed, of another kind or version, or a plan with stages.
    """
    kind, value = _read(file, kinds)
    if kind == "plan" and "stages" in value:
        raise InputError(
            f"plan '{cut(file)}' has stages, expected one without; tensoropt explain tells of its stages, and so does "
            "print(tensoropt.load_plan(file))"
        )
    return _rows(kind, value, file)


def _read(file: File, kinds: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the kind and the JSON value of a file of one of some kinds."""
    checks = {"frontier": partial(check_signed, "frontier", file)}
    return read_json_of(file, {kind: _KINDS[kind] for kind in kinds}, checks)


def _rows(kind: str, value: dict[str, Any], file: File) -> PlanRows | FrontierRows | dict[str, Any]:
    """Return the rows of a plan without stages or a frontier, and a curve's value as it is."""
    if kind == "curve":
        return value
    with reading_value(kind, file):
        if kind == "plan":
            plan = PlanRows(value)
            _ = plan.mesh, plan.operators, plan.reshardings, plan.device_bytes, plan.peak
            return plan
        device_bytes_of(value["assumed"])
        return FrontierRows(value)


def read_explained(file: File) -> PlanRows | StageRows | FrontierRows:
    """Read a plan, with stages or without, or a frontier; see :func:`read_rows`."""
    kind, value = _read(file, ("plan", "frontier"))
    if kind == "plan" and "stages" in value:
        staged = StageRows(value)
        with reading_value(kind, file):
            _ = [(plan.mesh, plan.operators, plan.reshardings, plan.device_bytes, plan.peak) for plan in staged.plans]
            checked_timeline(value["timeline"])
        return staged
    rows = _rows(kind, value, file)
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
