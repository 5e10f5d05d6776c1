"""Compare frontiers with stages and without: the least memory, the least time, and what the search costs.

    python tests/benchmarks/staged_frontiers.py [--stages 2,4] [--together] [--seconds 0] [--gap 1]
        [MODEL[:SIZE=N,...]@CLUSTER ...]

Each model is searched without stages, then in each number of stages by itself, in one process: what is compiled or loaded
once counts for the first alone. ``--together`` is ``search --stages 1,2,4`` instead: no stages and all numbers in one.
``CPU s`` are the process's CPU seconds from the recorded model to the frontier; ``beaten`` is how many points without stages
have a point with stages that needs no more memory and less time.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from tabulate import tabulate

from tensoropt import zoo
from tensoropt.common.memory_units import memory_text
from tensoropt.ft import Budget
from tensoropt.plan.find_staged import find_with_stages
from tensoropt.plan.request import Request
from tensoropt.plan.staged_frontier import StagedFrontier
from tensoropt.profiling.hardware import named
from tensoropt.tools.offline import record

DEFAULT = ("transformer@v100-2x8", "bert_large@v100-2x8")
HEADERS = ("model", "stages", "points", "least peak", "its time", "fastest", "its peak", "beaten", "CPU s")


def row(what: str, counts: Sequence[int], found: StagedFrontier, alone: StagedFrontier, cpu_s: float) -> list[str]:
    """Return a line of the table."""
    least, fastest = found.points_of[0], found.points_of[-1]
    beaten = [
        each
        for each in alone.points_of
        if any(other.n_bytes <= each.n_bytes and other.costs_ns[0] < each.costs_ns[0] for other in found.points_of)
    ]
    return [
        what,
        ",".join(map(str, counts)),
        str(len(found)),
        memory_text(least.n_bytes),
        f"{least.costs_ns[0] / 1e6:,.1f} ms, {least.micro_batches} micro-batches",
        f"{fastest.costs_ns[0] / 1e6:,.1f} ms, {fastest.micro_batches} micro-batches",
        memory_text(fastest.n_bytes),
        f"{len(beaten)} of {len(alone)}",
        f"{cpu_s:.1f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="MODEL[:SIZE=N,...]@CLUSTER", default=DEFAULT)
    parser.add_argument("--stages", default="2,4", help="beside none; default: 2,4")
    parser.add_argument("--together", action="store_true", help="search no stages and all of these numbers at once")
    parser.add_argument("--seconds", type=float, default=0.0, help="for refining; default: 0")
    parser.add_argument("--gap", type=float, default=1.0, help="in percent, that is small enough to stop; default: 1")
    given = parser.parse_args()
    counts = tuple(map(int, given.stages.split(",")))
    searches = [(1,), *([(1, *counts)] if given.together else [(count,) for count in counts])]
    budget, rows = Budget(seconds=given.seconds, gap=given.gap / 100), []
    for case in given.cases:
        name, _, cluster = case.partition("@")
        request = Request(record(zoo.sized(name), name).model, named(cluster), None, budget=budget)
        alone: StagedFrontier | None = None
        for each in searches:
            start = time.process_time()
            found = find_with_stages(request, request.hardware.n_devices, each)
            cpu_s = time.process_time() - start
            alone = alone or found
            rows.append(row(case, each, found, alone, cpu_s))
            print(tabulate(rows[-1:], HEADERS, disable_numparse=True), flush=True)
    print(f"\n{tabulate(rows, HEADERS, disable_numparse=True)}")


if __name__ == "__main__":
    main()
