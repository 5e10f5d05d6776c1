"""Simulated times of what several algorithms find on FlexFlow's six models and two clusters (its Figure 6).

    python tests/benchmarks/flexflow.py [MODEL ...] [--cluster p100-4x4] [--seconds 60] [--times 30]

For each: data parallelism, one weird trick (the expert's strategy), the frontier's fastest point, walks from there on
(``ft-simulated``, of ``--seconds`` at most) and FlexFlow's search (``mcmc``), which gets ``--times`` times the seconds that
the descent and the frontier before it took, but no more than ``--most``. All search the same space. The columns are the
simulated milliseconds of a step, and the seconds of processor time of the search; *times* is how many times the descent's
seconds FlexFlow's search took, which is less than ``--times`` where other work had a part of the cores, since its limit goes
by the clock, or where it ended by itself. *Above* is by how much the step that it finds is slower than the descent's.
"""

from __future__ import annotations

import argparse
import time

from tabulate import tabulate

from tensoropt.ft import Budget
from tensoropt.profiling.hardware import resolve
from tensoropt.search.frontiers.find_frontier import find_frontier
from tensoropt.search.frontiers.model_frontier import ModelFrontier
from tensoropt.search.request import Request
from tensoropt.tools.offline import record_named

MODELS = ("alexnet", "resnet101", "inception_v3", "rnntc", "rnnlm", "nmt")
PLAIN = ("reuse", "remat")


def row(name: str, cluster: str, seconds: float, times: float, most: float) -> list[object]:
    model, hardware = record_named(f"zoo:{name}").model, resolve(cluster)
    cells: list[object] = [name, hardware.name]

    def found_by(algorithm: str, budget_s: float | None = None) -> tuple[int, float, ModelFrontier]:
        started = time.process_time()
        budget = None if budget_s is None else Budget(seconds=budget_s)
        without = PLAIN if algorithm == "ft-ldp" else ()
        asked = Request(model, hardware, None, algorithm=algorithm, budget=budget, without=frozenset(without))
        found = find_frontier(asked, hardware.n_devices)
        took_s = time.process_time() - started
        return found.simulated_ns(len(found.points) - 1), took_s, found

    for algorithm in ("data-parallel", "one-weird-trick", "ft-ldp"):
        cost_ns, took_s, _ = found_by(algorithm)
        cells += [f"{cost_ns / 1e6:.3f}", f"{took_s:.1f}"]
    descended_ns, took_s, _ = found_by("ft-simulated", seconds)
    cells += [f"{descended_ns / 1e6:.3f}", f"{took_s:.1f}"]
    walked_ns, walked_s, found = found_by("mcmc", min(most, times * took_s))
    print(found.note, flush=True)
    compared = f"{walked_s / took_s:.1f}", f"{walked_ns / descended_ns - 1:+.2%}"
    return [*cells, f"{walked_ns / 1e6:.3f}", f"{walked_s:.1f}", *compared]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default: {' '.join(MODELS)}")
    parser.add_argument("--cluster", default="p100-4x4")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--times", type=float, default=30.0)
    parser.add_argument("--most", type=float, default=600.0)
    arguments = parser.parse_args()
    limits = arguments.seconds, arguments.times, arguments.most
    rows = [row(name, arguments.cluster, *limits) for name in arguments.models or MODELS]
    headers = ["model", "cluster"]
    for algorithm in ("data parallel", "expert", "FT's fastest", "ft-simulated", "mcmc"):
        headers += [f"{algorithm} ms", "s"]
    print(tabulate(rows, [*headers, "times", "above"], disable_numparse=True))


if __name__ == "__main__":
    main()
