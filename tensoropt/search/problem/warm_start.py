"""Translate strategies of one StrategyProblem into states of another that has more choices about the same operators.

A search with more choices starts from what a search with fewer has found, so that it never finds worse. The states of
operators are the same, those of the smaller problem first. The nodes of copies are others with other states; of those that
mean the same, the one is taken that costs the least given the states of its neighbours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...ft.problem import Edge
from .strategy_problem import StrategyProblem, cheapest_state


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


_Adjacent = tuple[Edge, np.ndarray | None]
"""An edge at a node, and its transient bytes in the shape of its costs; None where there are none."""


def adopted(target: StrategyProblem, source: StrategyProblem, strategies: np.ndarray) -> np.ndarray:
    """Return strategies of ``source``, int32[P, its nodes], as states of ``target``, int32[P, nodes].

    Args:
        source: a problem of the same graph, mesh and space; ``target`` has all of its choices.
    """
    problem = target.problem
    adopted_states = np.zeros((len(strategies), len(problem.nodes)), np.int32)
    adopted_states[:, : len(target.nodes)] = strategies[:, : len(target.nodes)]
    edges: dict[int, list[_Adjacent]] = defaultdict(list)
    for number, edge in enumerate(problem.edges):
        adjacent = edge, _transient_bytes(target, number)
        edges[edge.source].append(adjacent)
        edges[edge.target].append(adjacent)
    for meaning in _meanings(target, source, strategies):
        node = meaning.node
        neighbours = [edge.target if edge.source == node else edge.source for edge, _ in edges[node]]
        context = np.concatenate([adopted_states[:, neighbours], meaning.of_strategy[:, None]], axis=1)
        first, member = _distinct_rows(context)
        # Where nothing is resharded, saving and regathering a copy are the same, and one of them may be missing.
        any_state = np.ones(problem.nodes[node].n_states, bool)
        states = [
            cheapest_state(problem, node, edges[node], (meaning.states[kind], any_state), adopted_states[row])
            for row, kind in ((row, meaning.of_strategy[row]) for row in first)
        ]
        adopted_states[:, node] = np.array(states, np.int32)[member]
    return adopted_states


def _distinct_rows(rows: np.ndarray) -> tuple[list[int], list[int]]:
    """Return the index of the first of each kind of equal rows, and the kind of each row."""
    # There are few kinds, so that a dictionary takes less time than NumPy's ``unique``, which sorts all rows.
    keys = np.ascontiguousarray(rows).view(f"V{rows.itemsize * rows.shape[1]}").reshape(-1).tolist()
    numbers: dict[bytes, int] = {}
    first, kinds = list[int](), list[int]()
    for row, key in enumerate(keys):
        number = numbers.setdefault(key, len(numbers))
        if number == len(first):
            first.append(row)
        kinds.append(number)
    return first, kinds


def _meanings(target: StrategyProblem, source: StrategyProblem, strategies: np.ndarray) -> Iterator[_Meaning]:
    """Yield, for each node of a copy, what the strategies mean by it.

    For a shared copy that is its operand sharding and whether it is saved or regathered; for another copy, only whether it
    is saved or regathered.
    """
    shared_before = {copy.tensor.name: copy for copy in source.shared}
    source_choices = {choice.copy: choice for choice in source.choices}
    regathered, regathered_before = (
        {choice.node: choice.is_regathered for choice in problem.choices} for problem in (target, source)
    )
    shared = [copy for copy in target.shared if copy.node >= len(target.nodes)]
    for copy in shared:
        source_copy = shared_before[copy.tensor.name]
        number = {code: i for i, code in enumerate(dict.fromkeys(copy.shardings.codes.tolist()))}
        codes = (version.shardings.in_numbers(copy.shardings.numbers).codes.tolist() for version in (source_copy, copy))
        source_ids, target_ids = (np.array([number.get(code, -1) for code in column], np.intp) for column in codes)
        is_requested = source_ids[:, None] == target_ids
        is_regathered = regathered.get(copy.node, np.zeros(len(copy.shardings), bool))
        was_regathered = regathered_before.get(source_copy.node, np.zeros(len(source_copy.shardings), bool))
        yield _Meaning(copy.node, strategies[:, source_copy.node], is_requested & (is_regathered == was_regathered[:, None]))
    for choice in target.choices:
        if all(choice.node != copy.node for copy in shared):
            meaning_of_strategy = np.zeros(len(strategies), np.intp)
            if choice.copy in source_choices:
                states = strategies[:, source_choices[choice.copy].node]
                meaning_of_strategy = source_choices[choice.copy].is_regathered[states].astype(np.intp)
            yield _Meaning(choice.node, meaning_of_strategy, np.stack([~choice.is_regathered, choice.is_regathered]))


def _transient_bytes(problem: StrategyProblem, edge: int) -> np.ndarray | None:
    """Return an edge's transient bytes, summed over all rematerialization segments; None where there are none."""
    segments = problem.transient.segments if problem.transient is not None else ()
    parts = [segment.edges[edge] for segment in segments if edge in segment.edges]
    # Mostly there is one part, an array that equal layers share: a sum would be a new one for each edge.
    return parts[0] if len(parts) == 1 else np.sum(parts, axis=0) if parts else None
