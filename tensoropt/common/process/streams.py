"""Give a process the standard streams that it was started without."""

from __future__ import annotations

import os
import sys


def open_closed_streams() -> None:
    """Open the standard streams that were closed when this process started, such as by ``>&-``: what is written is dropped.

    Python has None for each of them, on which ``sys.stderr.flush()`` fails, and prints to the other one instead.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
