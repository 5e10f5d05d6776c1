"""Where in the user's code an operator was made."""

from __future__ import annotations

import os
from typing import Any

_PACKAGES = tuple(os.sep + os.path.join("site-packages", name) + os.sep for name in ("tensorflow", "keras"))
_OWN_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep
_ZOO_FOLDER = os.path.join(_OWN_FOLDER, "zoo", "")


def source_line(op: Any) -> str:
    """The innermost line of the user's code on the way to this TensorFlow operation, as ``file:line``."""
    for frame in reversed(op.traceback or ()):
        filename = os.path.abspath(frame.filename)
        is_own = filename.startswith(_OWN_FOLDER) and not filename.startswith(_ZOO_FOLDER)
        if not is_own and not any(part in filename for part in _PACKAGES):
            return f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return ""
