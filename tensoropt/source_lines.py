"""Where in the user's code an operator was made."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Any

_PACKAGES = tuple(os.sep + os.path.join("site-packages", name) + os.sep for name in ("tensorflow", "keras"))
_OWN_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep
_ZOO_FOLDER = os.path.join(_OWN_FOLDER, "zoo", "")
_STANDARD_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep


def source_line(op: Any) -> str:
    """The innermost line of the user's code on the way to this TensorFlow operation, as ``file:line``."""
    for frame in reversed(op.traceback or ()):
        if is_users(frame.filename):
            return f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return ""


def calling_line() -> str:
    """Return the innermost line of the user's code that is being executed, as ``file:line``."""
    frame = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


@cache
def is_users(filename: str) -> bool:
    """Return whether a file is of the user's code; asked for each frame of each operator."""
    path = os.path.abspath(filename)
    is_own = path.startswith(_OWN_FOLDER) and not path.startswith(_ZOO_FOLDER)
    is_standard = path.startswith(_STANDARD_LIBRARY) and "-packages" + os.sep not in path
    return not is_own and not is_standard and not any(part in path for part in _PACKAGES)
