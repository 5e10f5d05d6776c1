"""Print the processor time that one strategy's peak takes: ``python tests/benchmarks/strategy_peak.py [MODEL@CLUSTER ...]``.

Of strategies of a frontier, evenly along it: by the compiled kernels, at first and again when what depends on choices is
known, and by the step program and its buffers, which must count as many bytes. Medians in milliseconds, with the longest.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
from tabulate import tabulate

from tensoropt.common.tensorflow_import import import_tensorflow
from tensoropt.ft import Budget
from tensoropt.profiling.hardware import resolve
from tensoropt.program.fast_peak import Peaks
from tensoropt.program.peak import peak_of
from tensoropt.sharding.strategy import StrategyView

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.fast_peaks import peak_bytes

MODELS = ("transformer@v100-2x8", "vgg16@v100-2x8")
N_STRATEGIES = 24


def times_ms(peaks: Peaks, view: StrategyView) -> list[float]:
    """Return the milliseconds that a strategy's peak takes: by the kernels, again, and by the step program."""

    def by_program() -> int:
        return peak_of(view, peaks.costing, peaks.path_finder).n_bytes

    bytes_of, took_ms = set(), []
    for count in (partial(peak_bytes, peaks, view), partial(peak_bytes, peaks, view), by_program):
        started = time.process_time()
        bytes_of.add(count())
        took_ms.append((time.process_time() - started) * 1e3)
    assert len(bytes_of) == 1, bytes_of
    return took_ms


def main(names: list[str]) -> None:
    import_tensorflow()
    from tensoropt.search.asked import Request
    from tensoropt.search.frontiers.find_frontier import find_frontier
    from tensoropt.tools.offline import record_named

    rows = []
    for name, cluster in (each.split("@") for each in names or MODELS):
        model, hardware = record_named(f"zoo:{name}").model, resolve(cluster)
        frontier = find_frontier(Request(model, hardware, None, budget=Budget(seconds=0.0)), hardware.n_devices)
        found = frontier.certified
        places = np.unique(np.linspace(0, len(found) - 1, N_STRATEGIES).round().astype(int))
        views = [frontier._counter.view(found.strategies[at]) for at in places]
        peaks = Peaks(frontier.model, frontier.costing, frontier._path_finder)
        peak_bytes(peaks, views[0])  # loads the kernels
        columns = zip(*(times_ms(peaks, view) for view in views), strict=True)
        each = [f"{np.median(column):.2f} ({max(column):.2f})" for column in columns]
        rows.append([f"{name}@{cluster}", len(model.graph.step_operators), len(views), *each])
    print(tabulate(rows, ["model", "operators", "strategies", "at first ms", "again ms", "step program ms"]))


if __name__ == "__main__":
    main(sys.argv[1:])
