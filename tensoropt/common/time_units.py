"""Times as users write them: '200ms', '1.5s', '300us'."""

from __future__ import annotations

import math
import re

from .errors import InputError, short

_UNITS_US = {"us": 1.0, "ms": 1e3, "s": 1e6, "min": 6e7, "h": 3.6e9}
_TEXT = re.compile(r"\s*(?P<number>\d+(\.\d*)?|\.\d+)\s*(?P<unit>[a-z]+)\s*")


def parse_time_us(text: str, name: str) -> float:
    """Return a time in microseconds.

    Args:
        name: what the time is, for the message.

    Raises:
        InputError: the text isn't a time above 0 with a unit.
    """
    match = _TEXT.fullmatch(text)
    time_us = float(match["number"]) * _UNITS_US.get(match["unit"], math.nan) if match else math.nan
    if not 0 < time_us < math.inf:
        units = ", ".join(_UNITS_US)
        raise InputError(f"{name} is a time above 0 with one of the units {units}, such as 200ms; got {short(text)}")
    return time_us
