"""The order in which TensorFlow's ``tf.gradients`` comes to what it differentiates.

It keeps a queue, first in first out, and comes to a node when it has come to everything that the node feeds. Callbacks of
collectives are chained, each with a number from the one before (:mod:`..lowering.resharding.reshard`): to TensorFlow that is
something the one before feeds, so it comes to collectives in the reverse of the order in which they were made.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


def reverse_order(
    starts: Iterable[Node], sources: Callable[[Node], Sequence[Node]], chained: Sequence[Node | None] = ()
) -> Iterator[Node]:
    """All nodes from which a start follows, each after everything that it feeds.

    Args:
        sources: what feeds a node, in the order of its inputs; as often as it does.
        chained: nodes each of which feeds the next one, before its other sources; those that no start follows from don't
            count, and break the chain, as None does.
    """
    fed: dict[Node, Sequence[Node]] = {}
    pending = [*dict.fromkeys(starts)]
    queue = deque(pending)
    while pending:
        node = pending.pop()
        if node not in fed:
            fed[node] = sources(node)
            pending += fed[node]
    for before, after in pairwise(chained):
        if before is not None and after is not None and before in fed and after in fed:
            fed[after] = [before, *fed[after]]
    missing = Counter(source for each in fed.values() for source in each)
    while queue:
        node = queue.popleft()
        yield node
        for source in fed[node]:
            missing[source] -= 1
            if not missing[source]:
                queue.append(source)
