"""Follow a relation from where one begins to all that it leads to."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


def reached(starts: Iterable[Node], onward: Callable[[Node], Iterable[Node]]) -> dict[Node, None]:
    """Return the starts and all that is reached from them, each once: the keys of a dictionary, which keeps their order."""
    reached = dict.fromkeys(starts)
    pending = list(reached)
    while pending:
        for node in onward(pending.pop()):
            if node not in reached:
                reached[node] = None
                pending.append(node)
    return reached
