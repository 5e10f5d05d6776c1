"""Time searches of the zoo's models and show what they find, each in a process of its own for its peak memory.

    python tests/benchmarks/search.py [--gap 1] [--seconds 2] [--unfolded] [MODEL[:SIZE=N,...]@CLUSTER ...] [--curve]
    python tests/benchmarks/search.py --table3

``seconds`` are from the recorded model to the unrolled plan of the fastest point, tables of costs and layouts and the
loading of compiled code included. A first run compiles, which isn't what is meant: run it twice. ``CPU s`` are the process's
CPU seconds in that time, which depend less on what else runs on the machine. ``--unfolded`` searches each model a second
time, in a process of its own, without noticing equal costs (``ft.interning.unfolded``; tables of costs are still built once
for equal operators), and adds its CPU seconds: the difference is what is saved by searching once what repeats. ``--curve``
is the time of a profiling curve over 1, 2, 4, 8 and 16 devices; ``--table3`` compares FT-Elimination with FT-LDP on the
models of the TensorOpt paper's Table 3.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import time
from contextlib import nullcontext
from typing import Any

from tabulate import tabulate

from tensoropt.ft import Budget

DEFAULT = (
    "rnn@v100-2x8",
    "transformer@v100-2x8",
    "wide_resnet@v100-2x8",
    "bert_large@v100-2x8",
    "vgg16@v100-2x8",
    "llama3_8b@h100-8x8",
    "gpt3@h100-64x8",
)
TABLE_3 = ("rnn@v100-2x8", "wide_resnet@v100-2x8", "transformer@v100-2x8")
CURVE = ("transformer", "v100-2x8", [1, 2, 4, 8, 16])
HEADERS = (
    "model",
    "devices",
    "operators",
    "nodes",
    "configs",
    "points",
    "gap, median",
    "worst",
    "costs s",
    "search s",
    "unroll s",
    "seconds",
    "CPU s",
    "peak MB",
)
Case = tuple[str, Budget, str, bool]


def recorded(what: str) -> Any:
    """Return a model of the zoo, such as ``gpt3`` or ``gpt3:layers=12``."""
    from tensoropt import zoo
    from tensoropt.tools.offline import record

    return record(zoo.sized(what), what)


def row(case: Case) -> list[str]:
    """Search once; return a line of the table."""
    what, budget, algorithm, folds = case
    name, _, cluster = what.partition("@")
    model = recorded(name).model
    from tensoropt.ft.interning import unfolded
    from tensoropt.profiling.hardware import named
    from tensoropt.search.frontiers.find_frontier import find_frontier

    hardware = named(cluster)
    start, cpu_start = time.perf_counter(), time.process_time()
    with nullcontext() if folds else unfolded():
        frontier = find_frontier(model, hardware, hardware.n_devices, algorithm=algorithm, budget=budget)
    found = time.perf_counter()
    frontier.plan(frontier.found.fastest(), "mini_time")
    end, cpu_end = time.perf_counter(), time.process_time()
    stages, inner, built = frontier.seconds_by_phase, frontier.found, frontier.built
    numbers = [hardware.n_devices, built.n_operators, len(built.problem.nodes), built.n_configs, len(inner)]
    proven = frontier.certified  # of all points that were found, before those that others beat in peak and time are dropped
    gaps = ["exact", ""] if proven.exact else [f"{proven.median_gap:.2%}", f"{proven.worst_gap:.2%}"]
    times = [f"{t:.2f}" for t in (stages["costs"], stages["search"], end - found, end - start, cpu_end - cpu_start)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [name, *map(str, numbers), *gaps, *times, f"{peak:.0f}"]


def curve_seconds(_: object) -> float:
    """Return the seconds from the recorded model to its curve."""
    from tensoropt.profiling.hardware import named
    from tensoropt.search.asked import Request
    from tensoropt.search.options import profiling

    name, cluster, counts = CURVE
    model = recorded(name).model
    start = time.perf_counter()
    profiling(Request(model, named(cluster), None), counts)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="MODEL[:SIZE=N,...]@CLUSTER")
    parser.add_argument("--gap", type=float, default=1.0, help="in percent, that is small enough to stop; default: 1")
    parser.add_argument("--seconds", type=float, default=2.0, help="for refining; default: 2")
    parser.add_argument("--unfolded", action="store_true", help="also search without folding, in CPU seconds")
    parser.add_argument("--curve", action="store_true")
    parser.add_argument("--table3", action="store_true")
    given = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    budget = Budget(seconds=given.seconds, gap=given.gap / 100)
    cases: list[Case] = [(case, budget, "ft-ldp", True) for case in given.cases]
    if not cases and not given.curve and not given.table3:
        cases = [(case, budget, "ft-ldp", True) for case in DEFAULT]
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        if cases:
            headers: tuple[str, ...] = HEADERS
            rows = _shown(pool, cases)
            if given.unfolded:
                others = _shown(pool, [(*case[:3], False) for case in cases])
                headers = (*HEADERS, "unfolded CPU s")
                rows = [[*each, other[HEADERS.index("CPU s")]] for each, other in zip(rows, others, strict=True)]
            print(tabulate(rows, headers, disable_numparse=True, stralign="right"))
        if given.table3:
            cases = [(case, budget, name, True) for case in TABLE_3 for name in ("ft-elimination", "ft-ldp")]
            rows = [[case[2], *each] for case, each in zip(cases, _shown(pool, cases), strict=True)]
            print(tabulate(rows, ("algorithm", *HEADERS), disable_numparse=True, stralign="right"))
        if given.curve:
            name, cluster, counts = CURVE
            (seconds,) = pool.map(curve_seconds, [None])
            print(f"profiling curve of {name} on {', '.join(map(str, counts))} devices of {cluster}: {seconds:.2f} s")


def _shown(pool: Any, cases: list[Case]) -> list[list[str]]:
    from tqdm import tqdm

    return list(tqdm(pool.imap(row, cases, chunksize=1), total=len(cases), disable=None, leave=False))


if __name__ == "__main__":
    main()
