"""Compile inner loops over arrays by Numba, and say that it does."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

import numba  # type: ignore[import-untyped,import-not-found,unused-ignore]
from numba.core import event  # type: ignore[import-untyped,import-not-found,unused-ignore]

from .process.progress import BENEATH

_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Compilation(event.Listener):  # type: ignore[misc,unused-ignore]
    """Says that loops are being compiled. Those that are loaded from the disk aren't."""

    def on_start(self, _: Any) -> None:
        BENEATH.append("compiling loops, once on this machine")

    def on_end(self, _: Any) -> None:
        BENEATH.pop()


event.register("numba:compile", _Compilation())


def njit(function: _Function, **options: Any) -> _Function:
    """Return the function compiled by Numba with some of its options, without the GIL."""
    return cast(_Function, numba.njit(nogil=True, **options)(function))


def inner(function: _Function) -> _Function:
    """Return a function that only other kernels call, compiled by Numba with them: it needs no wrappers, which take time."""
    return njit(function, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)


@cache
def compiled(function: _Function) -> _Function:
    """Return the function compiled by Numba and cached on disk."""
    return njit(function, cache=True)
