"""A mapping that never changes: hashable and picklable, which ``types.MappingProxyType`` is not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class FrozenMapping(Mapping[str, Value], Generic[Value]):
    """An immutable mapping of text keys, in their given order; equal to any mapping with the same items."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, Value]) -> None:
        self._items = dict(items)

    def __getitem__(self, key: str) -> Value:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)


def freeze(value: Any) -> Any:
    """Return a JSON value with its objects as FrozenMapping and its lists as tuples."""
    if isinstance(value, Mapping):
        return FrozenMapping({str(key): freeze(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple(freeze(item) for item in value)
    return value
