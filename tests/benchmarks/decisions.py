"""Print how single changes of decisions differ from min-marginals: run it with ``PYTHONPATH=tests``.

For every decision of every point of a small model's frontier it compares two weighed costs with the point's own: that of the
cheapest other choice if nothing else changes (the single change), and the least with another choice if everything else may
change with it (the min-marginal).
"""

from __future__ import annotations

import numpy as np
from plan.frontiers import frontier_of, two_layers
from tabulate import tabulate

from tensoropt.ft.weighted.weighted_search import WeightedSearch
from tensoropt.plan.decisions import _PointChanges, _slope


def main() -> None:
    frontier = frontier_of(two_layers)
    problem = frontier.built.problem
    search = WeightedSearch(problem)
    found: list[tuple[float, float]] = []
    for point in range(len(frontier)):
        around, ns_per_byte = _PointChanges(frontier, point), _slope(frontier, point)
        own_ns = around.cost[1] + ns_per_byte * around.cost[0]
        if not ns_per_byte:
            continue
        marginals = search.marginals((ns_per_byte, 1.0))
        for node in range(len(frontier.built.nodes)):
            if problem.nodes[node].n_states < 2 or not around.time_ns_of(node):
                continue
            other = around.cheapest_other(node)
            if other is not None:
                mem_bytes, time_ns = problem.cost(other)
                least = np.delete(np.array(marginals.nodes[node], float), around.states[node]).min()
                found.append((time_ns + ns_per_byte * mem_bytes - own_ns, least - own_ns))
    single, least = np.array(found).T
    rows = [
        ["points, decisions", f"{len(frontier)}, {len(found)}"],
        ["min-marginal equal to the single change", int(np.isclose(single, least, rtol=1e-6, atol=1).sum())],
        ["min-marginal above the single change", int((least > single + 2).sum())],
        ["min-marginal below the point's own cost", int((least < -1).sum())],
        ["single change below the point's own cost", int((single < -1).sum())],
        ["median of single changes, min-marginals, us", f"{np.median(single) / 1e3:.2f}, {np.median(least) / 1e3:.2f}"],
    ]
    print(tabulate(rows, disable_numparse=True))


if __name__ == "__main__":
    main()
