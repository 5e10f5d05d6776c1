"""Turn edges that have several ways to be paid for into nodes and plain edges.

A resharding may be done in several ways: save the copy before it, the copy after it, or both; or reshard again in the
backward pass. Then an edge's cost depends on a third thing, the *choice*. Such an edge becomes a node whose states are pairs
(class of the source's states, choice). The edge to the source forbids states of another class; the edge to the target has
the costs of the choice. Source states whose costs are equal for all targets and choices form one class, so there are no more
classes than the tensor has layouts. The search itself stays as it is: exact, bounded, pruned.

Choices that are dominated for all targets of a class are left out.

Complexity: O(K_s K_t C) to build.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .problem import INFEASIBLE, Edge, Ints, Node, Problem


@dataclass(frozen=True, slots=True, eq=False)
class ChoiceEdge:
    """Costs that depend on the states of two nodes and on a choice.

    Attributes:
        source, target: indices into the nodes.
        mem_bytes, time_ns: int64[K of source, K of target, C]; INFEASIBLE where a choice isn't available.

    Raises:
        ValueError: the arrays don't have three dimensions, or differ in shape.
    """

    source: int
    target: int
    mem_bytes: Ints
    time_ns: Ints

    def __post_init__(self) -> None:
        shapes = self.mem_bytes.shape, self.time_ns.shape
        if len(shapes[0]) != 3 or shapes[0] != shapes[1] or 0 in shapes[0]:
            raise ValueError(
                f"costs of the edge {self.source} -> {self.target} must be [K source, K target, C >= 1] both, got {shapes}"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Choosing:
    """A problem in which edges with choices have become nodes, after the others.

    Attributes:
        problem: the problem with these nodes.
        n_nodes: the number of nodes that don't stand for an edge.
        choices: for each edge with choices, int64[states of its node]: the choice that each state means.
    """

    problem: Problem
    n_nodes: int
    choices: tuple[Ints, ...]

    def chosen(self, strategies: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """Return the choice that each strategy makes at every edge with choices: int64[P, edges with choices]."""
        columns = [choices[strategies[:, self.n_nodes + k]] for k, choices in enumerate(self.choices)]
        return np.stack(columns, axis=1) if columns else np.zeros((len(strategies), 0), np.int64)


def with_choices(nodes: Sequence[Node], edges: Sequence[Edge | ChoiceEdge]) -> Choosing:
    """Build the problem of these nodes and edges.

    Raises:
        ValueError: as :class:`.Problem` does.
    """
    all_nodes, plain, choices = list(nodes), [], []
    for edge in edges:
        if isinstance(edge, Edge):
            plain.append(edge)
            continue
        number = len(all_nodes)
        class_of, of_class, choice = choice_states(edge.mem_bytes, edge.time_ns)
        name = f"{nodes[edge.source].name} -> {nodes[edge.target].name}"
        nothing = np.zeros(len(choice), np.int64)
        all_nodes.append(Node(name, nothing, nothing))
        same = np.where(class_of[:, None] == of_class[None, :], 0, INFEASIBLE)
        plain.append(Edge(edge.source, number, np.zeros_like(same), same))
        member = np.unique(class_of, return_index=True)[1][of_class]
        plain.append(Edge(number, edge.target, *(cost[member, :, choice] for cost in (edge.mem_bytes, edge.time_ns))))
        choices.append(choice)
    return Choosing(Problem(tuple(all_nodes), tuple(plain)), len(nodes), tuple(choices))


def choice_states(mem_bytes: Ints, time_ns: Ints, others: Ints | None = None) -> tuple[Ints, Ints, Ints]:
    """Return the (class of source states, choice) pairs that may matter.

    Args:
        mem_bytes, time_ns: int64[K of source, K of target, C].
        others: int64[K of source, K of target], something else that must be equal for the states of one class.

    Returns:
        The class of each source state, then the class and the choice of each pair.
    """
    costs = np.stack([mem_bytes, time_ns], axis=-1)
    n_source, n_choices = costs.shape[0], costs.shape[2]
    flat = costs.reshape(n_source, -1)
    distinguishing = flat if others is None else np.concatenate([flat, others], axis=1)
    rows, class_of = np.unique(distinguishing, axis=0, return_inverse=True)
    of_choices = rows[:, : flat.shape[1]].reshape(len(rows), costs.shape[1], n_choices, 2)
    by_choice = of_choices.transpose(0, 2, 1, 3).reshape(len(rows), n_choices, -1)
    of_class, choice = [], []
    for index, options in enumerate(by_choice):
        as_good = (options[:, None] <= options[None]).all(axis=2)  # [i, j]: i is nowhere worse than j
        first_of_equals = as_good & (~as_good.T | np.tri(n_choices, k=-1, dtype=bool).T)
        np.fill_diagonal(first_of_equals, False)
        kept = np.flatnonzero(~first_of_equals.any(axis=0))
        of_class += [index] * len(kept)
        choice += kept.tolist()
    return class_of.reshape(-1).astype(np.int64), np.array(of_class, np.int64), np.array(choice, np.int64)
