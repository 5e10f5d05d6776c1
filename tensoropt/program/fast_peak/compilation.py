"""Compile functions on arrays by Numba."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ..compiled import njit

_OPTIONS: dict[str, Any] = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Functions that only other kernels call need no wrappers, and compile in less time without."""
_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function) -> _Function:
    """Return a function that other kernels call, compiled by Numba with them."""
    return njit(function, **_OPTIONS)


def entry(function: _Function) -> _Function:
    """Return the function that Python calls, compiled by Numba with all that it calls, cached on disk and without the GIL.

    It must use a variable of the function around it that is :func:`sources_digest`. That is part of the key by which Numba
    finds the compiled code; without it a change of another file than the function's would go unnoticed.
    """
    return njit(function, cache=True, error_model="numpy")


def sources_digest() -> int:
    """Return a number of at least 0 that is another one when a file of this package changes."""
    texts = (file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))
    return zlib.crc32(b"".join(texts))
