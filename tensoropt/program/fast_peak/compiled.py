"""Compile functions on arrays by Numba; where there is none, they are called as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])

try:
    import numba  # type: ignore[import-untyped,import-not-found,unused-ignore]

    IS_COMPILED = True
except ImportError:
    IS_COMPILED = False


def compiled(function: _Function, is_called: bool = False) -> _Function:
    """Return the function compiled by Numba, cached on disk and without the GIL; itself where there is no Numba.

    Args:
        is_called: whether Python calls it; those that only other kernels call compile in less time.
    """
    if not IS_COMPILED:
        return function
    options: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
    options["no_cpython_wrapper"] = not is_called
    return cast(_Function, numba.njit(**options)(function))
