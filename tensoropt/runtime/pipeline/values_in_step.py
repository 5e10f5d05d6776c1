"""First values of variables that all processes must ask for in the same order, for processes that want different ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import numpy as np


class ValuesInStep:
    """A function that returns first values; each call asks for all that come before in the order, too.

    Of those only one is held at a time.
    """

    def __init__(self, value: Callable[[str], np.ndarray], names: Iterable[str]) -> None:
        self._value, self._pending = value, deque(names)

    def __call__(self, name: str) -> np.ndarray:
        while True:
            asked = self._pending.popleft()
            value = self._value(asked)
            if asked == name:
                return value

    def finish(self) -> None:
        """Ask for those that are left, which other processes want."""
        while self._pending:
            self._value(self._pending.popleft())
