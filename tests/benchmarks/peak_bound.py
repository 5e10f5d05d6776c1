"""Print how far sums that a search can bound are from peaks: ``python tests/benchmarks/peak_bound.py [MODEL ...]``.

A search proves that no plan has less of a sum and less time. Where a sum is never above the peak, that holds of peaks
too. For strategies of each model's search, evenly along it, the peak is divided by three of these: the sum that is
searched, the same without gradients (which are freed before most of the backward pass), and the share of parameters, slots
and batch that every plan has. A sum that is above some peak, a ratio below 1, proves nothing of peaks.
"""

from __future__ import annotations

import sys

import numpy as np
from tabulate import tabulate

from tensoropt.common.tensorflow_import import import_tensorflow
from tensoropt.costs.held_bytes import least_held_bytes
from tensoropt.ft import Budget
from tensoropt.profiling.hardware import resolve
from tensoropt.program.peak import PARAMETERS, SLOTS, peak_of

MODELS = ("lenet5", "vgg16", "wide_resnet", "rnn")
CLUSTER, N_STRATEGIES = "v100-2x8", 24


def main(names: list[str]) -> None:
    import_tensorflow()
    from tensoropt.plan.find_frontier import find_frontier
    from tensoropt.tools.offline import record_named

    rows = []
    hardware = resolve(CLUSTER)
    for name in names or MODELS:
        model = record_named(f"zoo:{name}", "sgd", 256).model
        frontier = find_frontier(model, hardware, hardware.n_devices, budget=Budget(seconds=2.0))
        found, variables = frontier.certified, frontier.model.graph.variables
        held = least_held_bytes(frontier.model.graph, frontier.mesh.n_devices)
        ratios = []
        for at in np.unique(np.linspace(0, len(found) - 1, N_STRATEGIES).round().astype(int)):
            view = frontier._counter.view(found.strategies[at])
            peak = peak_of(view, frontier.costing, frontier._path_finder)
            own = sum(
                frontier.costing.mem_bytes(op, view.rules[op.name], view.strategy.configs[op.name], view.interfaces[op.name])
                for op in variables
            )
            counted = int(found.mem_bytes[at])
            without = counted - own + peak.by_use[PARAMETERS] + peak.by_use[SLOTS]
            ratios.append([peak.n_bytes / each for each in (counted, without, held)])
        low, high = np.min(ratios, axis=0), np.max(ratios, axis=0)
        rows.append([name, len(ratios), *(f"{a:.2f} to {b:.2f}" for a, b in zip(low, high, strict=True))])
        headers = ("model", "strategies", "peak / sum", "peak / sum without gradients", "peak / least share")
        print(tabulate(rows[-1:], headers if len(rows) == 1 else ()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
