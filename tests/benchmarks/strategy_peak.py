"""Print the processor time that the peak of one strategy takes: ``python tests/benchmarks/strategy_peak.py [MODEL@CLUSTER ...]``.

Of strategies of a frontier, evenly along it: by the compiled kernels, at first and again when what depends on choices is
known, and by the step program and its buffers, which must count as many bytes. Medians in milliseconds, with the longest.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from tabulate import tabulate

from tensoropt.common.tensorflow_import import import_tensorflow
from tensoropt.ft import Budget
from tensoropt.profiling.hardware import resolve
from tensoropt.program.fast_peak import Peaks
from tensoropt.program.peak import peak_of

MODELS = ("transformer@v100-2x8", "vgg16@v100-2x8")
N_STRATEGIES = 24


def main(names: list[str]) -> None:
    import_tensorflow()
    from tensoropt.plan.find_frontier import find_frontier
    from tensoropt.tools.offline import record_named

    rows = []
    for name, cluster in (each.split("@") for each in names or MODELS):
        model, hardware = record_named(f"zoo:{name}").model, resolve(cluster)
        frontier = find_frontier(model, hardware, hardware.n_devices, budget=Budget(seconds=0.0))
        found, costing, path_finder = frontier.certified, frontier.costing, frontier._path_finder
        places = np.unique(np.linspace(0, len(found) - 1, N_STRATEGIES).round().astype(int))
        views = [frontier._counter.view(found.strategies[at]) for at in places]
        peaks = Peaks(frontier.model, costing, path_finder)
        peaks.quick_bytes(views[0])  # loads the kernels
        took_ms: list[list[float]] = []
        for view in views:
            bytes_of, row = [], []
            for count in (peaks.quick_bytes, peaks.quick_bytes, lambda view: peak_of(view, costing, path_finder).n_bytes):
                started = time.process_time()
                bytes_of.append(count(view))
                row.append((time.process_time() - started) * 1e3)
            assert len(set(bytes_of)) == 1, (name, bytes_of)
            took_ms.append(row)
        each = [f"{np.median(column):.2f} ({max(column):.2f})" for column in zip(*took_ms, strict=True)]
        rows.append([f"{name}@{cluster}", len(model.graph.step_operators), len(views), *each])
    print(tabulate(rows, ["model", "operators", "strategies", "at first ms", "again ms", "step program ms"]))


if __name__ == "__main__":
    main(sys.argv[1:])
