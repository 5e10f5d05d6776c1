"""Translate strategies of one StrategyProblem into states of another that has more choices about the same operators.

A search with more choices starts from what a search with fewer has found, so that it never finds worse. The states of
operators are the same, those of the smaller problem first. The nodes of copies are others with other states; of those that
mean the same, the one is taken that costs the least given the states of its neighbours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...ft.problem import INFEASIBLE, Edge, Node
from .strategy_problem import StrategyProblem


@dataclass(frozen=True)
class _Meaning:
    """The meanings that P strategies give to a node that isn't an operator.

    Attributes:
        of_strategy: the number of the meaning that each strategy has, int[P].
        states: for each meaning, the states of the node that have it, bool[meanings, K].
    """

    node: int
    of_strategy: np.ndarray
    states: np.ndarray


@dataclass(frozen=True, eq=False)
class _AdjacentEdge:
    """An edge at a node.

    Attributes:
        transient: the edge's transient bytes, in the shape of its costs; None where there are none.
    """

    edge: Edge
    transient: np.ndarray | None


def adopted(built: StrategyProblem, other: StrategyProblem, strategies: np.ndarray) -> np.ndarray:
    """Return strategies of ``other``, int32[P, its nodes], as states of ``built``, int32[P, nodes].

    Args:
        other: a problem of the same graph, mesh and space; ``built`` has all of its choices.
    """
    problem = built.problem
    found = np.zeros((len(strategies), len(problem.nodes)), np.int32)
    found[:, : len(built.nodes)] = strategies[:, : len(built.nodes)]
    edges: dict[int, list[_AdjacentEdge]] = defaultdict(list)
    for number, edge in enumerate(problem.edges):
        adjacent = _AdjacentEdge(edge, _transient_bytes(built, number))
        edges[edge.source].append(adjacent)
        edges[edge.target].append(adjacent)
    for meaning in _meanings(built, other, strategies):
        node = meaning.node
        others = [each.edge.target if each.edge.source == node else each.edge.source for each in edges[node]]
        context = np.concatenate([found[:, others], meaning.of_strategy[:, None]], axis=1)
        first, member = _distinct_rows(context)
        states = [
            _cheapest(problem.nodes[node], node, edges[node], meaning.states[meaning.of_strategy[row]], found[row])
            for row in first
        ]
        found[:, node] = np.array(states, np.int32)[member]
    return found


def _distinct_rows(rows: np.ndarray) -> tuple[list[int], list[int]]:
    """Return the index of the first of each kind of equal rows, and the kind of each row."""
    # There are few kinds, so that a dictionary takes less time than NumPy's ``unique``, which sorts all rows.
    keys = np.ascontiguousarray(rows).view(f"V{rows.itemsize * rows.shape[1]}").reshape(-1).tolist()
    numbers: dict[bytes, int] = {}
    first: list[int] = []
    kinds: list[int] = []
    for row, key in enumerate(keys):
        number = numbers.setdefault(key, len(numbers))
        if number == len(first):
            first.append(row)
        kinds.append(number)
    return first, kinds


def _meanings(built: StrategyProblem, other: StrategyProblem, strategies: np.ndarray) -> Iterator[_Meaning]:
    """Yield, for each node of a copy, what the strategies mean by it.

    For a shared copy that is its operand sharding and whether it is saved or regathered; for another copy, only whether it
    is saved or regathered.
    """
    shared_before = {copy.tensor.name: copy for copy in other.shared}
    before = {choice.copy: choice for choice in other.choices}
    regathered, regathered_before = (
        {choice.node: choice.is_regathered for choice in each.choices} for each in (built, other)
    )
    shared = [copy for copy in built.shared if copy.node >= len(built.nodes)]
    for copy in shared:
        was = shared_before[copy.tensor.name]
        number = {code: i for i, code in enumerate(dict.fromkeys(copy.shardings.codes.tolist()))}
        codes = (of.shardings.in_numbers(copy.shardings.numbers).codes.tolist() for of in (was, copy))
        wanted, offered = (np.array([number.get(code, -1) for code in each], np.intp) for each in codes)
        is_requested = wanted[:, None] == offered
        is_regathered = regathered.get(copy.node, np.zeros(len(copy.shardings), bool))
        was_regathered = regathered_before.get(was.node, np.zeros(len(was.shardings), bool))
        yield _Meaning(copy.node, strategies[:, was.node], is_requested & (is_regathered == was_regathered[:, None]))
    for choice in built.choices:
        if all(choice.node != copy.node for copy in shared):
            of_strategy = np.zeros(len(strategies), np.intp)
            if choice.copy in before:
                chosen = strategies[:, before[choice.copy].node]
                of_strategy = before[choice.copy].is_regathered[chosen].astype(np.intp)
            yield _Meaning(choice.node, of_strategy, np.stack([~choice.is_regathered, choice.is_regathered]))


def _transient_bytes(built: StrategyProblem, edge: int) -> np.ndarray | None:
    """Return an edge's transient bytes, summed over all rematerialization segments; None where there are none."""
    segments = built.transient.segments if built.transient is not None else ()
    parts = [segment.edges[edge] for segment in segments if edge in segment.edges]
    # Mostly there is one part, an array that equal layers share: a sum would be a new one for each edge.
    return parts[0] if len(parts) == 1 else np.sum(parts, axis=0) if parts else None


def _cheapest(own: Node, node: int, edges: Sequence[_AdjacentEdge], meant: np.ndarray, states: np.ndarray) -> int:
    """Return the cheapest state of the node among those ``meant`` that are compatible with its neighbours.

    The cheapest has the least memory, then the least time, then the least transient memory. If none is compatible, the
    cheapest of all compatible states is returned: where nothing is resharded, saving and regathering a copy are the same,
    and one of them may be missing.
    """
    mem, time_ns, for_a_while = own.mem_bytes.copy(), own.time_ns.copy(), np.zeros_like(own.mem_bytes)
    for edge, transient in ((each.edge, each.transient) for each in edges):
        here = (slice(None), states[edge.target]) if edge.source == node else (states[edge.source], slice(None))
        mem += edge.mem_bytes[here]
        time_ns += edge.time_ns[here]
        if transient is not None:
            for_a_while += transient[here]
    allowed = np.maximum(mem, time_ns) < INFEASIBLE
    among = np.flatnonzero(allowed & meant if (allowed & meant).any() else allowed)
    return int(among[np.lexsort((for_a_while[among], time_ns[among], mem[among]))[0]])
