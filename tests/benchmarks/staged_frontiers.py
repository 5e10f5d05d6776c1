"""Compare frontiers with stages and without: the least memory, the least time, and what the search costs.

    python tests/benchmarks/staged_frontiers.py [--stages 1,2,4] [--seconds 0] [MODEL[:SIZE=N,...]@CLUSTER ...]

Each model is searched without stages, then with each further number of stages allowed, in one process, so that what is
compiled or loaded once counts for the first alone. ``CPU s`` are the process's CPU seconds from the recorded model to the
frontier. ``below`` is how many points without stages are beaten, in peak memory and time, by one with stages.
"""

from __future__ import annotations

import argparse
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from collections import Counter

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
HEADERS = (
    "model", "allowed", "points", "of 1, 2, ... stages", "least peak", "at", "fastest", "peak there", "below", "CPU s",
)  # fmt: skip


def row(what: str, counts: tuple[int, ...], found: StagedFrontier, alone: StagedFrontier, cpu_s: float) -> list[str]:
    """Return a line of the table."""
    of_counts = Counter(point.n_stages for point in found.points_of)
    least, fastest = found.points_of[0], found.points_of[-1]
    beaten = [
        each
        for each in alone.points_of
        if any(
            other.n_stages > 1 and other.n_bytes <= each.n_bytes and other.costs_ns[0] < each.costs_ns[0]
            for other in found.points_of
        )
    ]
    return [
        what,
        ", ".join(map(str, counts)),
        str(len(found)),
        ", ".join(str(of_counts[count]) for count in counts),
        memory_text(least.n_bytes),
        f"{least.costs_ns[0] / 1e6:,.1f} ms, {least.n_stages} x {least.micro_batches}",
        f"{fastest.costs_ns[0] / 1e6:,.1f} ms, {fastest.n_stages} x {fastest.micro_batches}",
        memory_text(fastest.n_bytes),
        f"{len(beaten)} of {len(alone)}",
        f"{cpu_s:.1f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="MODEL[:SIZE=N,...]@CLUSTER", default=DEFAULT)
    parser.add_argument("--stages", default="1,2,4", help="begins with 1; default: 1,2,4")
    parser.add_argument("--seconds", type=float, default=0.0, help="for refining; default: 0")
    given = parser.parse_args()
    counts = tuple(map(int, given.stages.split(",")))
    rows = []
    for case in given.cases:
        name, _, cluster = case.partition("@")
        request = Request(record(zoo.sized(name), name).model, named(cluster), None, budget=Budget(seconds=given.seconds))
        alone: StagedFrontier | None = None
        for allowed in (counts[: i + 1] for i in range(len(counts))):
            start = time.process_time()
            found = find_with_stages(request, request.hardware.n_devices, allowed)
            cpu_s = time.process_time() - start
            alone = alone or found
            rows.append(row(case, allowed, found, alone, cpu_s))
            print(tabulate(rows[-1:], HEADERS, disable_numparse=True), flush=True)
    print(f"\n{tabulate(rows, HEADERS, disable_numparse=True)}")


if __name__ == "__main__":
    main()
