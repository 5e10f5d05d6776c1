"""Print what a decision's cheapest other choice costs, found in four ways: run it with ``PYTHONPATH=tests``.

For every decision of every point of a small model's frontier, another choice of one operator

- *alone*: all other operators stay, and the copies changes it follow (what a report shows);
- *with its neighbours*: operators that it shares a copy with may change, too;
- *with all* (the min-marginal): every operator may change, for the least weighed cost;
- *within the memory*: every operator may change, for the least time in the point's memory.

Costs are weighed as the frontier weighs memory against time at the point, and are what is added to the point's own: medians.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from plan.frontiers import frontier_of, two_layers
from tabulate import tabulate

from tensoropt.ft import InfeasibleError, search
from tensoropt.ft.problem import Problem
from tensoropt.ft.weighted.weighted_search import WeightedSearch
from tensoropt.plan.decisions import _PointChanges, _slope

Found = list[int] | None


def without(problem: Problem, node: int, state: int, states: list[int], free: set[int]) -> tuple[Problem, list[np.ndarray]]:
    """Return the problem in which a node has any state but one, free nodes any, and all others theirs."""
    kept = [np.arange(each.n_states) if i in free else np.array([states[i]]) for i, each in enumerate(problem.nodes)]
    kept[node] = np.delete(np.arange(problem.nodes[node].n_states), state)
    return problem.restricted(kept), kept


def cheapest(changes: _PointChanges, node: int, free: set[int], ns_per_byte: float) -> Found:
    """Return the states of the least weighed cost with another state of a node, where some nodes are free."""
    part, kept = without(changes.problem, node, changes.states[node], changes.states, free)
    try:
        found = WeightedSearch(part).least((ns_per_byte, 1.0))
    except InfeasibleError:
        return None
    assert found.strategy is not None
    return [int(kept[i][state]) for i, state in enumerate(found.strategy)]


def fastest_within(changes: _PointChanges, node: int) -> Found:
    """Return the states of the least time with another state of a node, in the memory that the point has."""
    part, kept = without(changes.problem, node, changes.states[node], changes.states, set(range(len(changes.states))))
    try:
        found = search(part, "ft-ldp")
    except InfeasibleError:
        return None
    fitting = np.flatnonzero(found.mem_bytes <= changes.cost[0])
    if not len(fitting):
        return None
    best = fitting[np.argmin(found.time_ns[fitting])]
    return [int(kept[i][state]) for i, state in enumerate(found.strategies[best])]


def near(changes: _PointChanges, node: int) -> set[int]:
    """Return the nodes that are at most two edges away: copies, and the operators that use them."""
    reached = {node}
    for _ in range(2):
        reached |= {end for at in reached for edge in changes.edges[at] for end in (edge.source, edge.target)}
    return reached


def main() -> None:
    frontier = frontier_of(two_layers)
    everything = set(range(len(frontier.built.problem.nodes)))
    ways: dict[str, Callable[[_PointChanges, int, float], Found]] = {
        "alone": lambda changes, node, weight: changes.cheapest_other(node),
        "with its neighbours": lambda changes, node, weight: cheapest(changes, node, near(changes, node), weight),
        "with all": lambda changes, node, weight: cheapest(changes, node, everything, weight),
        "within the memory": lambda changes, node, weight: fastest_within(changes, node),
    }
    told: dict[str, list[tuple[float, float, int, float]]] = {name: [] for name in ways}
    for point in range(len(frontier)):
        changes, ns_per_byte = _PointChanges(frontier, point), _slope(frontier, point)
        decided = [
            node for node in range(len(frontier.built.nodes))
            if changes.problem.nodes[node].n_states > 1 and changes.time_ns_of(node)
        ]  # fmt: skip
        for node in decided if ns_per_byte else ():
            for name, way in ways.items():
                started = time.process_time()
                other = way(changes, node, ns_per_byte)
                took = time.process_time() - started
                if other is None:
                    continue
                mem_bytes, time_ns = changes.problem.cost(other)
                weighed = time_ns - changes.cost[1] + ns_per_byte * (mem_bytes - changes.cost[0])
                changed = sum(other[i] != changes.states[i] for i in range(len(frontier.built.nodes)))
                told[name].append((weighed / 1e3, (time_ns - changes.cost[1]) / 1e3, changed, 1e3 * took))
    rows = []
    for name, found in told.items():
        weighed, times, changed, took = np.array(found).T
        rows.append([
            name, len(found), f"{np.median(weighed):.2f}", int((weighed < -1e-3).sum()), f"{np.median(times):.2f}",
            f"{np.median(changed):.0f}", f"{np.median(took):.1f}",
        ])  # fmt: skip
    headers = ("another choice", "found", "weighed, us", "below 0", "time, us", "operators changed", "CPU ms")
    print(f"{len(frontier)} points")
    print(tabulate(rows, headers, disable_numparse=True))


if __name__ == "__main__":
    main()
