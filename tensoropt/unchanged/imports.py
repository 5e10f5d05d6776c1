"""Act once the script has imported modules, so that what it sets in the environment before counts."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def after_import(names: Iterable[str], action: Callable[[], None]) -> None:
    """Call an action once all of some modules are imported, of which one may import the other: now if they are already."""
    missing = {name for name in names if name not in sys.modules}
    if missing:
        sys.meta_path.insert(0, _Finder(missing, action))
    else:
        action()


class _Finder(MetaPathFinder):
    """A finder that leaves modules to the other finders, and has an action follow the last import of some."""

    def __init__(self, missing: set[str], action: Callable[[], None]) -> None:
        self._missing, self._sought, self._action = missing, set(missing), action

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in self._sought:
            return None
        self._sought.remove(fullname)  # so that the other finders are asked
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._missing.discard(fullname)
            if not self._missing:
                self._action()

        loader.exec_module = exec_module
        return spec
