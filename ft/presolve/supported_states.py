"""Drop states that no strategy can have, before the search. Exact.

A state of a node is *unsupported* if its own cost is infeasible, or some edge allows no state of the other node with it.
This finds most contradictions before any table is built, and can name where they are.

Complexity: O(sum over edges of K_s K_t) per round; few rounds are needed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..problem import INFEASIBLE, Edge, InfeasibleError, Ints, Node, Problem, identity

Mask = npt.NDArray[np.bool_]


def supported_states(problem: Problem) -> tuple[Ints, ...]:
    """Return for each node the states that are supported, ascending; at least one.

    Raises:
        InfeasibleError: a node or an edge allows nothing; the message names it.
    """
    states, pairs = _allowed(problem)
    if not all(mask.all() for mask in {id(mask): mask for mask in (*states, *pairs)}.values()):
        _drop_unsupported(problem, pairs, states)
    return tuple(np.flatnonzero(mask).astype(np.int64, copy=False) for mask in states)


def _allowed(problem: Problem) -> tuple[list[Mask], list[Mask]]:
    """Return the states of nodes, and the pairs of states of edges, whose own cost is feasible, as masks."""
    masks: dict[tuple[object, ...], Mask] = {}  # one for all nodes, and all edges, with the same arrays

    def mask_of(part: Node | Edge) -> Mask:
        key = identity(part.mem_bytes), identity(part.time_ns)
        if key not in masks:
            masks[key] = (part.mem_bytes < INFEASIBLE) & (part.time_ns < INFEASIBLE)
            if isinstance(part, Node) and not masks[key].any():
                raise InfeasibleError(f"no strategy is allowed: every state of node {part.name!r} is infeasible")
        return masks[key]

    return [mask_of(node) for node in problem.nodes], [mask_of(edge) for edge in problem.edges]


def _drop_unsupported(problem: Problem, pairs: list[Mask], states: list[Mask]) -> None:
    """Drop the unsupported states of all nodes in ``states``; raise an error if a node has no state left."""
    cache: dict[tuple[int, bytes, int], Mask] = {}  # by an edge's mask, what is kept of the other end, and its axis
    has_changed = True
    while has_changed:
        has_changed = False
        for edge, mask in zip(problem.edges, pairs, strict=True):
            for end, other, axis in ((edge.source, edge.target, 1), (edge.target, edge.source, 0)):
                key = id(mask), states[other].tobytes(), axis
                if key not in cache:
                    cache[key] = np.asarray((mask[:, states[other]] if axis else mask[states[other]]).any(axis=axis))
                supported = states[end] & cache[key]
                if np.count_nonzero(supported) == np.count_nonzero(states[end]):
                    continue
                states[end] = supported
                has_changed = True
                if not supported.any():
                    raise InfeasibleError(
                        f"no strategy is allowed: no state of {problem.nodes[end].name!r} is left that edge "
                        f"{problem.edge_name(edge)} allows; look at the states that this edge forbids"
                    )
