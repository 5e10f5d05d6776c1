"""Predict the order in which TensorFlow's ``tf.gradients`` visits the nodes that it differentiates.

``tf.gradients`` keeps a first-in, first-out queue and visits a node once it has visited every node that this one feeds. The
callbacks of collectives are chained: each reads a number that the callback before it wrote
(:mod:`..lowering.resharding.reshard`). To TensorFlow the earlier callback therefore feeds the later one, so the backward
pass visits collectives in the reverse of the order in which they were created.
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
    """Yield every node that a start depends on, and the starts, each after all nodes that it feeds.

    Args:
        starts: the nodes at which the backward pass begins.
        sources: returns the nodes that feed a node, in the order of its inputs; one that feeds it twice is named twice.
        chained: nodes of which each feeds the next one, ahead of the next one's other sources. A node that no start depends
            on is ignored and breaks the chain, as None does.
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
