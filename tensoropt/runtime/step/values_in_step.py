"""First values of variables that all processes must ask for in the same order, for processes that want different ones."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable

import numpy as np


class ValuesInStep:
    """A function that returns first values; each call asks for all that come before in the order, too.

    Of those only the ones that this process asks for later are held.
    """

    def __init__(self, value: Callable[[str], np.ndarray], names: Iterable[str], own_names: Iterable[str]) -> None:
        """Take the function that all processes must call in the same order.

        Args:
            names: that order.
            own_names: what this process asks for, as often as it does.
        """
        self._value, self._pending = value, deque(names)
        self._n_requests, self._values = Counter(own_names), dict[str, np.ndarray]()

    def __call__(self, name: str) -> np.ndarray:
        while name not in self._values:
            first_name = self._pending.popleft()
            value = self._value(first_name)
            if self._n_requests[first_name]:
                self._values[first_name] = value
        self._n_requests[name] -= 1
        return self._values[name] if self._n_requests[name] else self._values.pop(name)

    def finish(self) -> None:
        """Ask for those that are left, which other processes want."""
        while self._pending:
            self._value(self._pending.popleft())
