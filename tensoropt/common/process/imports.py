"""Act around the first import of a module, which may be the user's own."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def around_import(name: str, around: Callable[[], AbstractContextManager[None]]) -> None:
    """Have a module that isn't imported yet run within a context when it is."""
    sys.meta_path.insert(0, _Finder(name, around))


class _Finder(MetaPathFinder):
    """A finder that leaves a module to the other finders. A module may be looked for often before it is imported."""

    def __init__(self, name: str, around: Callable[[], AbstractContextManager[None]]) -> None:
        self._name, self._around, self._asks_others = name, around, False

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != self._name or self._asks_others:
            return None
        self._asks_others = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asks_others = False
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                sys.meta_path.remove(self)
                with self._around():
                    execute(module)

            loader.exec_module = exec_module
        return spec
