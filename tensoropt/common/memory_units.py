"""Memory limits as users write them: '16GB' (10^9), '15GiB' (2^30), '400B', or in Python a number of bytes."""

from __future__ import annotations

import re
from numbers import Real

from .errors import InputError, short

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30,
         "TIB": 2**40}  # fmt: skip
_TEXT = re.compile(r"\s*(?P<number>\d+(\.\d*)?|\.\d+)\s*(?P<unit>[A-Za-z]*)\s*")
_SAFETY = 1.1


def parse_memory(limit: int | float | str) -> int:
    """Return a memory limit in bytes; raise InputError if the limit isn't a positive amount, or its unit is unknown."""
    if isinstance(limit, str):
        match = _TEXT.fullmatch(limit)
        if match is None or match["unit"].upper() not in UNITS:
            raise InputError(
                f"memory limit {limit!r} isn't an amount of memory; expected a number with one of the units B, kB, MB, GB, "
                "TB (powers of 10) or KiB, MiB, GiB, TiB (powers of 2), such as '16GB'"
            )
        amount = float(match["number"]) * UNITS[match["unit"].upper()]
    elif isinstance(limit, Real) and not isinstance(limit, bool):
        amount = float(limit)
    else:
        raise InputError(
            f"memory limit {short(limit)} isn't an amount of memory; expected a number of bytes, or a text such as '16GB'"
        )
    if not 1 <= amount < 2**62:
        raise InputError(f"memory limit {limit!r} must be at least one byte per device, and less than 2^62")
    return int(amount)


def default_limit(device_bytes: int) -> int:
    """Return the bytes of a device that a plan may use by default.

    That is less than the device has, since the costs leave out small things (TensorOpt paper, footnote 2).
    """
    return int(device_bytes / _SAFETY)


def memory_text(n_bytes: int) -> str:
    """Return an amount of memory as a short text, such as ``1.25 MB``."""
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if n_bytes >= size:
            return f"{n_bytes / size:.3g} {unit}" if n_bytes < 999.5 * size else f"{n_bytes / size:.0f} {unit}"
    return f"{n_bytes} B"
