"""First values of variables that all processes must ask for in the same order, for processes that want different ones."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable

import numpy as np


class ValuesInStep:
    """A function that returns first values; each call asks for all that come before in the order, too.

    Of those only the ones that this process asks for later are held.
    """

    def __init__(self, value: Callable[[str], np.ndarray], names: Iterable[str], asked: Iterable[str]) -> None:
        """Take the function that all processes must call in the same order.

        Args:
            names: that order.
            asked: what this process asks for, as often as it does.
        """
        self._value, self._pending = value, deque(names)
        self._to_come, self._held = Counter(asked), dict[str, np.ndarray]()

    def __call__(self, name: str) -> np.ndarray:
        while name not in self._held:
            asked = self._pending.popleft()
            value = self._value(asked)
            if self._to_come[asked]:
                self._held[asked] = value
        self._to_come[name] -= 1
        return self._held[name] if self._to_come[name] else self._held.pop(name)

    def finish(self) -> None:
        """Ask for those that are left, which other processes want."""
        while self._pending:
            self._value(self._pending.popleft())
