"""Drop states that never matter, before the search. Exact.

There are two reasons to drop a state of a node; both are tried until neither applies:

- *unsupported*: its own cost is infeasible, or some edge allows no state of the other node with it;
- *dominated*: another state of the node has equal rows in all its edges, and costs no more memory and no more time. In any
  strategy the one can replace the other. (Of states that are equal in everything the lowest is kept.)

The first finds most contradictions before any table is built, and can name where they are. Complexity: O(sum over edges of
K_s K_t) per round; few rounds are needed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..pareto import reduce_unsorted
from ..problem import INFEASIBLE, Edge, InfeasibleError, Ints, Node, Problem, identity

Mask = npt.NDArray[np.bool_]


def states_that_matter(problem: Problem) -> tuple[Ints, ...]:
    """Return for each node the states to keep, ascending; at least one.

    Raises:
        InfeasibleError: a node or an edge allows nothing; the message names it.
    """
    kept, allowed = _allowed(problem)
    edges_of: list[list[int]] = [[] for _ in problem.nodes]
    for index, edge in enumerate(problem.edges):
        edges_of[edge.source].append(index)
        edges_of[edge.target].append(index)
    known: dict[tuple[object, ...], Mask] = {}
    while True:
        _drop_unsupported(problem, allowed, kept)
        dominated = [_drop_dominated(problem, node, edges_of[node], allowed, kept, known) for node in range(len(kept))]
        if not any(dominated):
            return tuple(np.flatnonzero(mask).astype(np.int64, copy=False) for mask in kept)


def check_supported(problem: Problem) -> None:
    """Raise an error if a quick check shows that a problem allows no strategy.

    Raises:
        InfeasibleError: a node or an edge allows nothing; the message names it.
    """
    kept, allowed = _allowed(problem)
    if not all(mask.all() for mask in {id(mask): mask for mask in (*kept, *allowed)}.values()):
        _drop_unsupported(problem, allowed, kept)


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


def _drop_unsupported(problem: Problem, allowed: list[Mask], kept: list[Mask]) -> None:
    """Drop the unsupported states of all nodes in ``kept``; raise an error if a node has no state left."""
    known: dict[tuple[object, ...], Mask] = {}  # by an edge's mask, what is kept of the other end, and what of this one
    alive: list[Mask] = []  # no other mask can get the address of one of these

    def left(mask: Mask, others: Mask, axis: int, own: Mask) -> Mask:
        """Return what is left of the states ``own`` of one end: the same object if that is all."""
        key = id(mask), id(others), axis, id(own)
        if key not in known:
            content = id(mask), others.tobytes(), axis
            if content not in known:
                known[content] = np.asarray((mask[:, others] if axis else mask[others]).any(axis=axis))
            both = own & known[content]
            known[key] = own if both.sum() == own.sum() else both
            alive.extend((others, own))
        return known[key]

    changed = True
    while changed:
        changed = False
        for edge, mask in zip(problem.edges, allowed, strict=True):
            for end, other, axis in ((edge.source, edge.target, 1), (edge.target, edge.source, 0)):
                of_end = left(mask, kept[other], axis, kept[end])
                if of_end is kept[end]:
                    continue
                kept[end] = of_end
                changed = True
                if not of_end.any():
                    raise InfeasibleError(
                        f"no strategy is allowed: no state of {problem.nodes[end].name!r} is left that edge "
                        f"{problem.edge_name(edge)} allows; look at the states that this edge forbids"
                    )


def _drop_dominated(
    problem: Problem,
    node: int,
    edges: list[int],
    allowed: list[Mask],
    kept: list[Mask],
    known: dict[tuple[object, ...], Mask],
) -> bool:
    """Drop the node's dominated states in ``kept``; return whether there were any.

    Args:
        known: what is to be kept of the nodes that were looked at, by their costs and those of their edges.
    """
    if int(kept[node].sum()) == 1:
        return False
    own = problem.nodes[node]
    key: list[object] = [identity(own.mem_bytes), identity(own.time_ns), kept[node].tobytes()]
    for edge in (problem.edges[index] for index in edges):
        is_source = edge.source == node
        other = kept[edge.target if is_source else edge.source]
        key.append((identity(edge.mem_bytes), identity(edge.time_ns), is_source, other.tobytes()))
    if tuple(key) not in known:
        known[tuple(key)] = _undominated(problem, node, edges, allowed, kept)
    keep = known[tuple(key)]
    changed = not np.array_equal(keep, kept[node])
    kept[node] = keep
    return changed


def _undominated(problem: Problem, node: int, edges: list[int], allowed: list[Mask], kept: list[Mask]) -> Mask:
    """Return which of the node's kept states no other one dominates."""
    states = np.flatnonzero(kept[node])
    rows = [_rows(problem.edges[index], allowed[index], node, states, kept) for index in edges]
    classes: dict[tuple[bytes, ...], list[int]] = {}
    for position, state in enumerate(states.tolist()):
        classes.setdefault(tuple(row[position].tobytes() for row in rows), []).append(state)
    mem, time = problem.nodes[node].mem_bytes, problem.nodes[node].time_ns
    keep = np.zeros_like(kept[node])
    for members in classes.values():
        of_class = np.array(members, np.int64)
        keep[of_class[reduce_unsorted(mem[of_class], time[of_class])]] = True
    return keep


def _rows(edge: Edge, allowed: Mask, node: int, states: npt.NDArray[np.intp], kept: list[Mask]) -> Ints:
    """Return an edge's costs with each of these states of a node: int64[len(states), 2, kept states of the other node]."""
    costs = np.stack([edge.mem_bytes, edge.time_ns])
    costs = np.where(allowed, costs, INFEASIBLE)
    if edge.source == node:
        return np.ascontiguousarray(costs[:, states][:, :, kept[edge.target]].transpose(1, 0, 2))
    return np.ascontiguousarray(costs[:, kept[edge.source]][:, :, states].transpose(2, 0, 1))
