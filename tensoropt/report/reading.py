"""Read the files that can be explained: plans, which are told of as frontiers of one point, frontiers and curves."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from ..common.files import CURVE, FRONTIER, PLAN, check_signed, read_json_of, reading_value
from .frontier_rows import FrontierRows

_KINDS = {"plan": PLAN, "frontier": FRONTIER, "curve": CURVE}
File = str | os.PathLike[str]
Result = TypeVar("Result")


def read_as(file: File, **by_kind: Callable[[Any], Result]) -> Result:
    """Read a file of one of some kinds, ``plan``, ``frontier`` and ``curve``; return what is made of its value.

    Args:
        by_kind: for each kind, what to make of the JSON value of such a file; damage may raise whatever error it leads to.

    Raises:
        InputError: the file can't be read, is cut off, changed, damaged, or of another kind or version.
    """
    checks = {"frontier": partial(check_signed, "frontier", file)}
    kind, value = read_json_of(file, {kind: _KINDS[kind] for kind in by_kind}, checks)
    with reading_value(kind, file):
        return by_kind[kind](value)


def read_points(file: File) -> FrontierRows:
    """Read a plan or a frontier; see :func:`read_as`."""
    return read_as(file, plan=FrontierRows.of_plan, frontier=FrontierRows)


def read_frontier(file: File) -> FrontierRows:
    """Read a frontier; see :func:`read_as`."""
    return read_as(file, frontier=FrontierRows)


def read_curve(file: File) -> dict[str, Any]:
    """Read a curve, which stays a JSON value; see :func:`read_as`."""
    return read_as(file, curve=dict)
