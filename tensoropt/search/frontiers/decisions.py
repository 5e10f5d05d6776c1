"""Collect what a report needs beside a plan: its step, the user's operators, and the plan's costliest decisions, each with
the cheapest other choice and what that would change.

A decision is the state of one of the problem's nodes: the configs of an operator, or of a few that were fused. Its cost is
what depends on it: the node's own and that of its edges. Another choice is costed with everything else as it is, except the
copies around the node (shared or regathered), which follow it: each takes its cheapest state. What is cheapest weighs memory
against time as the frontier does at the point.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ft.problem import INFEASIBLE, Edge, Node
from ...ir.graph import Graph, Operator
from ...report.sentences import config_words
from ..problem.node_states import States
from .model_frontier import ModelFrontier
from .step_views import step_view

MOST_DECISIONS = 10
Floats = np.ndarray


def details_of_stage(frontier: ModelFrontier, point: int) -> dict[str, Any]:
    """Return the details of a stage with a point of its frontier, for a report of that alone."""
    return {"views": {"0": view_of(frontier, point)}, **of_operators(frontier.model.graph.full_batch)}


def view_of(frontier: ModelFrontier, point: int) -> dict[str, Any]:
    """Return the step of a point and its decisions."""
    return {**step_view(frontier, point), "decisions": decisions(frontier, point)}


def of_operators(graph: Graph) -> dict[str, Any]:
    """Return the user's lines, and the shapes of results, by operator."""
    ops = [op for op in graph.operators.values() if op.updates is None]
    return {
        "sources": {op.name: user_source(op) for op in ops if user_source(op)},
        "shapes": {op.name: list(op.result.shape) for op in ops if op.outputs},
    }


def decisions(frontier: ModelFrontier, point: int) -> list[dict[str, Any]]:
    """Return the decisions of a point that cost the most time, the costliest first, as a JSON value.

    Equal layers have equal decisions: operators of one type, config and cost are told once, with how many others are alike.
    """
    changes = _PointChanges(frontier, point)
    order = sorted(range(len(frontier.built.nodes)), key=changes.time_ns_of, reverse=True)
    groups: dict[tuple[str, str, int], list[int]] = {}
    for node in order:
        if frontier.built.problem.nodes[node].n_states > 1 and changes.time_ns_of(node):
            op = frontier.built.nodes[node][0].operators[0]
            key = op.type, str(changes.strategy.configs[op.name]), changes.time_ns_of(node)
            groups.setdefault(key, []).append(node)
    costliest = list(groups.values())[:MOST_DECISIONS]
    return [{**_decision(frontier, changes, nodes[0]), "alike": len(nodes) - 1} for nodes in costliest]


def _decision(frontier: ModelFrontier, changes: _PointChanges, node: int) -> dict[str, Any]:
    group, states = frontier.built.nodes[node]
    alternative = changes.cheapest_other(node)
    op = group.operators[0]
    entry: dict[str, Any] = {
        "operator": op.name,
        "type": op.type,
        "fused_with": [fused.name for fused in group.operators[1:]],
        "source": user_source(op),
        "time_us": changes.time_ns_of(node) / 1e3,
        "config": str(changes.strategy.configs[op.name]),
        "words": _words(op, states, changes.states[node], str(changes.strategy.configs[op.name])),
        "other": None,
    }
    if alternative is not None:
        mem_bytes, time_ns = frontier.built.problem.cost(alternative)
        strategy = frontier.built.strategy(alternative)
        config = strategy.configs[op.name]
        entry["other"] = {
            "config": str(config),
            "words": _words(op, states, alternative[node], str(config)),
            "is_rematerialized": op.name in strategy.rematerialized,
            "sum_bytes": mem_bytes - changes.cost[0],
            "time_us": (time_ns - changes.cost[1]) / 1e3,
        }
    return entry


def user_source(op: Operator) -> str:
    """Return the line of the user's code that made an operator; nothing if it was made by Python itself, as by ``-m``."""
    return "" if op.source.startswith("<") else op.source


def _words(op: Operator, states: States, state: int, config: str) -> str:
    """Return the config of a node's first operator in words."""
    interface = states.interfaces[0][int(states.index[0][state])]
    return config_words(op.type, config, tuple(map(str, interface.results)))


class _PointChanges:
    """A point's states, and the costs of changing one of them."""

    def __init__(self, frontier: ModelFrontier, point: int) -> None:
        self.problem, self.n_operators = frontier.built.problem, len(frontier.built.nodes)
        self.states = [int(state) for state in frontier.found.strategies[point]]
        self.strategy = frontier.built.strategy(self.states)
        self.cost = self.problem.cost(self.states)
        self._ns_per_byte = _slope(frontier, point)
        self.edges: list[list[Edge]] = [[] for _ in self.problem.nodes]
        for edge in self.problem.edges:
            self.edges[edge.source].append(edge)
            self.edges[edge.target].append(edge)

    def _weighed(self, costs: Node | Edge) -> Floats:
        """Return costs in nanoseconds, a byte being worth the frontier's slope at the point; infinite if not allowed."""
        weighed: Floats = costs.time_ns + self._ns_per_byte * costs.mem_bytes
        return np.where((costs.mem_bytes >= INFEASIBLE) | (costs.time_ns >= INFEASIBLE), np.inf, weighed)

    def time_ns_of(self, node: int) -> int:
        """Return the time that depends on a node's state."""
        base = int(self.problem.nodes[node].time_ns[self.states[node]])
        return base + sum(int(edge.time_ns[self.states[edge.source], self.states[edge.target]]) for edge in self.edges[node])

    def cheapest_other(self, node: int) -> list[int] | None:
        """Return the states with the cheapest other state of a node; None if no other is allowed."""
        costs = self._weighed(self.problem.nodes[node])
        copies: dict[int, list[Edge]] = {}
        for edge in self.edges[node]:
            neighbour = edge.target if edge.source == node else edge.source
            if neighbour >= self.n_operators:
                copies.setdefault(neighbour, []).append(edge)
            else:
                costs = costs + self._facing(edge, node)[:, self.states[neighbour]]
        copy_states: dict[int, np.ndarray] = {}
        for copy, edges in copies.items():
            joint_costs = self._alone(copy, node)[None, :] + sum(self._facing(edge, node) for edge in edges)
            copy_states[copy] = joint_costs.argmin(axis=1)
            costs = costs + joint_costs.min(axis=1)
        costs[self.states[node]] = np.inf
        for best in map(int, np.argsort(costs, kind="stable")[: int(np.isfinite(costs).sum())]):
            states_after = list(self.states)
            states_after[node] = best
            for copy, states in copy_states.items():
                states_after[copy] = int(states[best])
            # Two copies that depend on each other may not be allowed together.
            if max(self.problem.cost(states_after)) < INFEASIBLE:
                return states_after
        return None

    def _facing(self, edge: Edge, node: int) -> Floats:
        """Return an edge's weighed costs, by the node's state first."""
        costs = self._weighed(edge)
        return costs if edge.source == node else costs.T

    def _alone(self, copy: int, node: int) -> Floats:
        """Return the weighed costs of a copy's states, with those of its edges to all nodes but one."""
        costs = self._weighed(self.problem.nodes[copy])
        for edge in self.edges[copy]:
            neighbour = edge.target if edge.source == copy else edge.source
            if neighbour != node:
                costs = costs + self._facing(edge, copy)[:, self.states[neighbour]]
        return costs


def _slope(frontier: ModelFrontier, point: int) -> float:
    """Return the nanoseconds that a byte buys between the points beside a point; 0 on a frontier of one point."""
    costs = frontier.costs
    order = np.argsort(costs.mem_bytes, kind="stable")
    position = int(np.flatnonzero(order == point)[0])
    low, high = order[max(position - 1, 0)], order[min(position + 1, len(order) - 1)]
    n_bytes = int(costs.mem_bytes[high]) - int(costs.mem_bytes[low])
    return max(0.0, (int(costs.time_ns[low]) - int(costs.time_ns[high])) / n_bytes) if n_bytes else 0.0
