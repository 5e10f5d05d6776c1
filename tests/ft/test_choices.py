"""Edges that carry small frontiers: against enumeration of states and choices."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tensoropt.ft import INFEASIBLE, Edge, InfeasibleError, Node, search
from tensoropt.ft.choices import ChoiceEdge, with_choices
from tensoropt.ft.pareto import reduce_unsorted

from .problems import SHAPES, Costs


def drawn(seed: int) -> tuple[list[Node], list[Edge | ChoiceEdge]]:
    """A small graph in which half of the edges have choices; sometimes equal rows, dominated and forbidden choices."""
    rng = np.random.default_rng(seed)
    n, pairs = SHAPES[("chain", "diamond", "parallel", "both directions", "star")[seed % 5]]
    costs = Costs(int(rng.choice([3, 12, 10**6])), float(rng.choice([0.0, 0.15])), 0.0)
    n = min(n, 4)
    nodes = [Node(f"n{i}", *costs.draw(rng, (2,))) for i in range(n)]
    edges: list[Edge | ChoiceEdge] = []
    for source, target in pairs:
        if source >= n or target >= n:
            continue
        if rng.random() < 0.5:
            edges.append(Edge(source, target, *costs.draw(rng, (2, 2))))
        else:
            mem, time = costs.draw(rng, (2, 2, int(rng.integers(1, 4))))
            if rng.random() < 0.4:
                mem, time = mem[[0, 0]], time[[0, 0]]
            edges.append(ChoiceEdge(source, target, mem, time))
    return nodes, edges


def enumerated(nodes: list[Node], edges: list[Edge | ChoiceEdge]) -> tuple[list[int], list[int]]:
    """All Pareto-minimal costs over all states and all choices, by definition."""
    found = []
    n_choices = [edge.mem_bytes.shape[2] if isinstance(edge, ChoiceEdge) else 1 for edge in edges]
    for states in product(*(range(node.n_states) for node in nodes)):
        for chosen in product(*map(range, n_choices)):
            cells = [(node, state) for node, state in zip(nodes, states, strict=True)]
            total = [sum(int(getattr(node, name)[state]) for node, state in cells) for name in ("mem_bytes", "time_ns")]
            for edge, choice in zip(edges, chosen, strict=True):
                pair = states[edge.source], states[edge.target]
                at = (*pair, choice) if isinstance(edge, ChoiceEdge) else pair
                total = [t + int(getattr(edge, name)[at]) for t, name in zip(total, ("mem_bytes", "time_ns"), strict=True)]
            if max(total) < INFEASIBLE:
                found.append(total)
    if not found:
        raise InfeasibleError("nothing")
    mem, time = np.array(found, np.int64).T
    kept = reduce_unsorted(mem, time)
    return mem[kept].tolist(), time[kept].tolist()


@pytest.mark.parametrize("seed", range(120))
def test_choices_of_edges_are_searched_exactly(seed: int) -> None:
    nodes, edges = drawn(seed)
    choosing = with_choices(nodes, edges)
    try:
        expected = enumerated(nodes, edges)
    except InfeasibleError:
        with pytest.raises(InfeasibleError):
            search(choosing.problem)
        return
    for algorithm in ("ft-ldp", "ft-elimination"):
        found = search(choosing.problem, algorithm)
        assert (found.mem_bytes.tolist(), found.time_ns.tolist()) == expected
        chosen = choosing.chosen(found.strategies)
        with_choice = [edge for edge in edges if isinstance(edge, ChoiceEdge)]
        for point, states in enumerate(found.strategies[:, : len(nodes)].tolist()):
            mem = sum(int(node.mem_bytes[s]) for node, s in zip(nodes, states, strict=True))
            mem += sum(int(e.mem_bytes[states[e.source], states[e.target]]) for e in edges if isinstance(e, Edge))
            for edge, choice in zip(with_choice, chosen[point].tolist(), strict=True):
                mem += int(edge.mem_bytes[states[edge.source], states[edge.target], choice])
            assert mem == found.mem_bytes[point]


def test_source_states_that_cost_the_same_and_dominated_choices_are_one() -> None:
    mem = np.array([[[1, 5, 9]], [[1, 5, 9]], [[2, 2, 2]]])
    time = np.array([[[9, 5, 9]], [[9, 5, 9]], [[3, 3, 3]]])
    nodes = [Node("a", *np.zeros((2, 3), np.int64)), Node("b", *np.zeros((2, 1), np.int64))]
    choosing = with_choices(nodes, [ChoiceEdge(0, 1, mem, time)])
    assert choosing.problem.nodes[2].n_states == 3  # two choices of the first class, one of the second
    found = search(choosing.problem)
    assert (found.mem_bytes.tolist(), found.time_ns.tolist()) == ([1, 2], [9, 3])
    assert choosing.chosen(found.strategies).tolist() == [[0], [0]]


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="K source, K target, C"):
        ChoiceEdge(0, 1, np.zeros((2, 2), np.int64), np.zeros((2, 2), np.int64))
    with pytest.raises(ValueError, match="must be"):
        with_choices(
            [Node("a", *np.zeros((2, 2), np.int64)), Node("b", *np.zeros((2, 2), np.int64))],
            [ChoiceEdge(0, 1, np.zeros((2, 3, 1), np.int64), np.zeros((2, 3, 1), np.int64))],
        )
