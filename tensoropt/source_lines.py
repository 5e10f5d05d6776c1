"""Where in the user's code an operator was made."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

_PACKAGES = tuple(os.sep + os.path.join("site-packages", name) + os.sep for name in ("tensorflow", "keras"))
_OWN_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep
_ZOO_FOLDER = os.path.join(_OWN_FOLDER, "zoo", "")


def source_line(op: Any) -> str:
    """The innermost line of the user's code on the way to this TensorFlow operation, as ``file:line``."""
    for frame in reversed(op.traceback or ()):
        if _is_users(frame.filename):
            return f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return ""


@cache
def _is_users(filename: str) -> bool:
    """Whether a file is of the user's code; asked for each frame of each operator."""
    path = os.path.abspath(filename)
    is_own = path.startswith(_OWN_FOLDER) and not path.startswith(_ZOO_FOLDER)
    return not is_own and not any(part in path for part in _PACKAGES)
