"""Time searches of the zoo's models and show what they find, each in a process of its own for its peak memory.

    python tests/benchmarks/search.py [--gap 1] [--seconds 2] [MODEL[:SIZE=N,...]@CLUSTER ...]

``seconds`` are from the recorded model to the unrolled plan of the fastest point, tables of costs and layouts and the
loading of compiled code included. A first run compiles, which isn't what is meant: run it twice. ``CPU s`` are the process's
CPU seconds in that time, which depend less on what else runs on the machine.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import time
from functools import partial

from tabulate import tabulate
from tqdm import tqdm

from tensoropt.ft import Budget

DEFAULT = ("rnn@v100-2x8", "transformer@v100-2x8", "wide_resnet@v100-2x8", "bert_large@v100-2x8", "vgg16@v100-2x8",
           "llama3_8b@h100-8x8", "gpt3@h100-64x8")  # fmt: skip
HEADERS = "model|devices|operators|nodes|configs|points|gap, median|worst".split("|")
HEADERS += "costs s|search s|unroll s|seconds|CPU s|peak MB".split("|")


def row(what: str, budget: Budget) -> list[str]:
    """Search once; return a line of the table."""
    from tensoropt import zoo
    from tensoropt.profiling.hardware import named
    from tensoropt.search.candidates.plan_points import frontier_of_whole
    from tensoropt.search.frontiers.find_frontier import find_frontier
    from tensoropt.search.request import Request
    from tensoropt.tools.offline import record

    name, _, cluster = what.partition("@")
    model, hardware = record(zoo.sized(name), name).model, named(cluster)
    start, cpu_start = time.perf_counter(), time.process_time()
    frontier = find_frontier(Request(model, hardware, None, budget=budget), hardware.n_devices)
    found = time.perf_counter()
    frontier_of_whole(frontier).fastest()
    end, cpu_end = time.perf_counter(), time.process_time()
    stages, inner, built = frontier.seconds_by_phase, frontier.found, frontier.built
    numbers = [hardware.n_devices, built.n_operators, len(built.problem.nodes), built.n_configs, len(inner)]
    proven = frontier.certified  # of all points that were found, before those that others beat in peak and time are dropped
    gaps = ["exact", ""] if proven.exact else [f"{proven.median_gap:.2%}", f"{proven.worst_gap:.2%}"]
    times = [f"{t:.2f}" for t in (stages["costs"], stages["search"], end - found, end - start, cpu_end - cpu_start)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [name, *map(str, numbers), *gaps, *times, f"{peak:.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=DEFAULT, metavar="MODEL[:SIZE=N,...]@CLUSTER")
    parser.add_argument("--gap", type=float, default=1.0, help="in percent, that is small enough to stop; default: 1")
    parser.add_argument("--seconds", type=float, default=2.0, help="for refining; default: 2")
    given = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    budget = Budget(seconds=given.seconds, gap=given.gap / 100)
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        found = pool.imap(partial(row, budget=budget), given.cases, chunksize=1)
        rows = list(tqdm(found, total=len(given.cases), disable=None, leave=False))
    print(tabulate(rows, HEADERS, disable_numparse=True, stralign="right"))


if __name__ == "__main__":
    main()
