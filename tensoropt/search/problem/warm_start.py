"""Strategies of one StrategyProblem in the states of another that has more choices about the same operators.

A search that may choose more begins with what one that may choose less has found, so that it never finds worse. The states
of operators are the same, those with less to choose first; what stands for copies are other nodes with other states, of
which those are taken that mean the same, at the least cost beside the states around them.
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
    """Of a node that isn't an operator.

    Attributes:
        of_strategy: the number of what each strategy means by it, int[P].
        states: which states mean that, bool[meanings, K].
    """

    node: int
    of_strategy: np.ndarray
    states: np.ndarray


@dataclass(frozen=True, eq=False)
class _Beside:
    """An edge of a node.

    Attributes:
        of_a_moment: what it takes for a while in the backward pass, in the shape of its costs; None where that is nothing.
    """

    edge: Edge
    of_a_moment: np.ndarray | None


def adopted(built: StrategyProblem, other: StrategyProblem, strategies: np.ndarray) -> np.ndarray:
    """Strategies of ``other``, int32[P, its nodes], in states of ``built``: int32[P, nodes].

    Args:
        other: of the same graph, mesh and space; what it may choose ``built`` may, too.
    """
    problem = built.problem
    found = np.zeros((len(strategies), len(problem.nodes)), np.int32)
    found[:, : len(built.nodes)] = strategies[:, : len(built.nodes)]
    edges: dict[int, list[_Beside]] = defaultdict(list)
    for number, edge in enumerate(problem.edges):
        beside = _Beside(edge, _of_a_moment(built, number))
        edges[edge.source].append(beside)
        edges[edge.target].append(beside)
    for meaning in _meanings(built, other, strategies):
        node = meaning.node
        others = [each.edge.target if each.edge.source == node else each.edge.source for each in edges[node]]
        context = np.concatenate([found[:, others], meaning.of_strategy[:, None]], axis=1)
        _, first, member = np.unique(context, axis=0, return_index=True, return_inverse=True)
        states = [
            _cheapest(problem.nodes[node], node, edges[node], meaning.states[meaning.of_strategy[row]], found[row])
            for row in first.tolist()
        ]
        found[:, node] = np.array(states, np.int32)[member.reshape(-1)]
    return found


def _meanings(built: StrategyProblem, other: StrategyProblem, strategies: np.ndarray) -> Iterator[_Meaning]:
    """A shared copy is another tensor's or asked for otherwise, kept or made again; another copy is one of the latter."""
    shared_before = {copy.tensor.name: copy for copy in other.shared}
    before = {choice.copy: choice for choice in other.choices}
    remade, remade_before = ({choice.node: choice.is_remade for choice in each.choices} for each in (built, other))
    shared = [copy for copy in built.shared if copy.node >= len(built.nodes)]
    for copy in shared:
        was = shared_before[copy.tensor.name]
        is_asked = np.array([[demand == each for each in copy.demands] for demand in was.demands], bool)
        is_remade = remade.get(copy.node, np.zeros(len(copy.demands), bool))
        was_remade = remade_before.get(was.node, np.zeros(len(was.demands), bool))
        yield _Meaning(copy.node, strategies[:, was.node], is_asked & (is_remade == was_remade[:, None]))
    for choice in built.choices:
        if all(choice.node != copy.node for copy in shared):
            of_strategy = np.zeros(len(strategies), np.intp)
            if choice.copy in before:
                chosen = strategies[:, before[choice.copy].node]
                of_strategy = before[choice.copy].is_remade[chosen].astype(np.intp)
            yield _Meaning(choice.node, of_strategy, np.stack([~choice.is_remade, choice.is_remade]))


def _of_a_moment(built: StrategyProblem, edge: int) -> np.ndarray | None:
    """What an edge takes for a while, of all blocks together; None where that is nothing."""
    blocks = built.transient.blocks if built.transient is not None else ()
    parts = [block.edges[edge] for block in blocks if edge in block.edges]
    return np.sum(parts, axis=0) if parts else None


def _cheapest(own: Node, node: int, edges: Sequence[_Beside], meant: np.ndarray, states: np.ndarray) -> int:
    """Of a node's states that mean something the one of the least memory, then time, then of memory for a while, beside the
    states around it.

    Where none may be there, any that may: where nothing is resharded, to keep a copy and to make it again are the same, and
    one of them may be missing.
    """
    mem, time_ns, for_a_while = own.mem_bytes.copy(), own.time_ns.copy(), np.zeros_like(own.mem_bytes)
    for edge, of_a_moment in ((each.edge, each.of_a_moment) for each in edges):
        here = (slice(None), states[edge.target]) if edge.source == node else (states[edge.source], slice(None))
        mem += edge.mem_bytes[here]
        time_ns += edge.time_ns[here]
        if of_a_moment is not None:
            for_a_while += of_a_moment[here]
    allowed = np.maximum(mem, time_ns) < INFEASIBLE
    among = np.flatnonzero(allowed & meant if (allowed & meant).any() else allowed)
    return int(among[np.lexsort((for_a_while[among], time_ns[among], mem[among]))[0]])
