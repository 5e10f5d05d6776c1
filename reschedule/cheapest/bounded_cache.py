"""Keep values that may be asked for again, as long as they are small enough together."""

from __future__ import annotations

from threading import Lock
from typing import Generic, TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class BoundedCache(Generic[_Key, _Value]):
    """The values that were used last, of at most so many bytes together, or one."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._found: dict[_Key, tuple[_Value, int]] = {}
        self._n_bytes = 0
        self._lock = Lock()

    def get(self, key: _Key) -> _Value | None:
        """Return what is kept for a key; None if nothing is."""
        with self._lock:
            entry = self._found.pop(key, None)
            if entry is None:
                return None
            self._found[key] = entry
            return entry[0]

    def put(self, key: _Key, value: _Value, n_bytes: int) -> None:
        """Keep a value, and drop those that were used least lately as far as needed."""
        with self._lock:
            self._n_bytes += n_bytes - self._found.pop(key, (None, 0))[1]
            self._found[key] = value, n_bytes
            while self._n_bytes > self._most_bytes and len(self._found) > 1:
                self._n_bytes -= self._found.pop(next(iter(self._found)))[1]
