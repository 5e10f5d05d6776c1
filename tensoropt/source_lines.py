"""Where in the user's code an operator was made."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import cache
from typing import Any

_PACKAGES = tuple(os.sep + os.path.join("site-packages", name) + os.sep for name in ("tensorflow", "keras"))
_OWN_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep
_ZOO_FOLDER = os.path.join(_OWN_FOLDER, "zoo", "")
_LIBRARIES = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "purelib"))


def source_line(op: Any) -> str:
    """The innermost line of the user's code on the way to this TensorFlow operation, as ``file:line``."""
    for frame in reversed(op.traceback or ()):
        if _is_users(frame.filename):
            return f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return ""


def running_line() -> str:
    """Return the innermost line of the user's code that is running, as ``file:line``."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if _is_users(name) and not name.startswith(("<", *_LIBRARIES)):
            return f"{os.path.basename(name)}:{frame.f_lineno}"
        frame = frame.f_back
    return "an unknown line"


@cache
def _is_users(filename: str) -> bool:
    """Whether a file is of the user's code; asked for each frame of each operator."""
    path = os.path.abspath(filename)
    is_own = path.startswith(_OWN_FOLDER) and not path.startswith(_ZOO_FOLDER)
    return not is_own and not any(part in path for part in _PACKAGES)
