"""Time searches of the zoo's models and show what they find, each in a process of its own for its peak memory.

    python tests/benchmarks/search.py [--gap 1] [--seconds 2] [--stages 1,2,4] [MODEL[:SIZE=N,...]@CLUSTER ...] [--curve]

``seconds`` are from the recorded model to the unrolled plan of the fastest point, tables of costs and layouts and the
loading of compiled code included. A first run compiles, which isn't what is meant: run it twice. ``CPU s`` are the process's
CPU seconds in that time, which depend less on what else runs on the machine. ``--stages`` searches plans in these numbers of
stages instead, on one core and on two, and says what more would give: the stages that one core searched wait for a core in
their order, each for as long as it took, and the rest of the time stays. This is simulated for two cores, too (the column
before the last two). ``--curve`` is the time of a profiling curve over 1, 2, 4, 8 and 16 devices.
"""

from __future__ import annotations

import argparse
import heapq
import multiprocessing
import os
import resource
import time
from collections.abc import Callable
from typing import Any

from tabulate import tabulate

from tensoropt.ft import Budget

DEFAULT = ("rnn@v100-2x8", "transformer@v100-2x8", "wide_resnet@v100-2x8", "bert_large@v100-2x8", "vgg16@v100-2x8",
           "llama3_8b@h100-8x8", "gpt3@h100-64x8")  # fmt: skip
CURVE = ("transformer", "v100-2x8", [1, 2, 4, 8, 16])
HEADERS = "model|devices|operators|nodes|configs|points|gap, median|worst".split("|")
HEADERS += "costs s|search s|unroll s|seconds|CPU s|peak MB".split("|")
CORES = (2, 8, 48)
OF_STAGES = "model|devices|points|worst gap|stages searched|1 core s|2 cores s".split("|")
OF_STAGES += [f"{n} simulated" for n in CORES]
Case = tuple[str, Budget]


def recorded(what: str) -> Any:
    """Return a model of the zoo, such as ``gpt3`` or ``gpt3:layers=12``."""
    from tensoropt import zoo
    from tensoropt.tools.offline import record

    return record(zoo.sized(what), what)


def row(case: Case) -> list[str]:
    """Search once; return a line of the table."""
    what, budget = case
    name, _, cluster = what.partition("@")
    model = recorded(name).model
    from tensoropt.profiling.hardware import named
    from tensoropt.search.candidates.plan_points import frontier_of_whole
    from tensoropt.search.frontiers.find_frontier import find_frontier
    from tensoropt.search.request import Request

    hardware = named(cluster)
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


def row_of_stages(case: tuple[str, Budget, list[int]]) -> list[str]:
    """Search in some numbers of stages, once on one core and once on two; return a line of the table."""
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        (numbers, seconds, of_each), (_, seconds_of_two, _) = pool.map(in_stages, [(*case, 1), (*case, 2)], chunksize=1)
    simulated = [seconds - sum(of_each) + queued(of_each, n_cores) for n_cores in CORES]
    return [case[0].partition("@")[0], *numbers, *(f"{each:.2f}" for each in (seconds, seconds_of_two, *simulated))]


def in_stages(case: tuple[str, Budget, list[int], int]) -> tuple[list[str], float, list[float]]:
    """Search once in some numbers of stages with some workers; return what is found, and the seconds, also by stage."""
    what, budget, counts, workers = case
    name, _, cluster = what.partition("@")
    model = recorded(name).model
    from tensoropt.profiling.hardware import named
    from tensoropt.search.candidates.search_candidates import search_with_stages
    from tensoropt.search.request import Request

    os.environ["TENSOROPT_WORKERS"] = str(workers)
    hardware = named(cluster)
    start = time.perf_counter()
    request = Request(model, hardware, None, budget=budget, stages=tuple(counts))
    found = search_with_stages(request, hardware.n_devices).frontier()
    seconds = time.perf_counter() - start
    phases = (stage.seconds_by_phase for each in found.searched for stage in each.frontiers)
    of_each = [sum(phase.values()) for phase in phases if phase]  # of stages that are alike one alone is searched
    return [str(hardware.n_devices), str(len(found)), f"{found.gaps.max():.2%}", str(len(of_each))], seconds, of_each


def queued(seconds: list[float], n_cores: int) -> float:
    """Return when all searches have ended that cores take one after the other, in this order."""
    free_at = [0.0] * n_cores
    for each in seconds:
        heapq.heapreplace(free_at, free_at[0] + each)
    return max(free_at)


def curve_seconds(_: object) -> float:
    """Return the seconds from the recorded model to its curve."""
    from tensoropt.profiling.hardware import named
    from tensoropt.search.options import profiling
    from tensoropt.search.request import Request

    name, cluster, counts = CURVE
    model = recorded(name).model
    start = time.perf_counter()
    profiling([(Request(model, named(cluster), None), count) for count in counts])
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="MODEL[:SIZE=N,...]@CLUSTER")
    parser.add_argument("--gap", type=float, default=1.0, help="in percent, that is small enough to stop; default: 1")
    parser.add_argument("--seconds", type=float, default=2.0, help="for refining; default: 2")
    parser.add_argument("--stages", metavar="COUNT[,...]", help="search plans in stages, such as 1,2,4")
    parser.add_argument("--curve", action="store_true")
    given = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    budget = Budget(seconds=given.seconds, gap=given.gap / 100)
    names = given.cases or (() if given.curve else DEFAULT)
    if given.stages is not None:
        counts = list(map(int, given.stages.split(",")))
        rows = [row_of_stages((name, budget, counts)) for name in names]
        print(tabulate(rows, OF_STAGES, disable_numparse=True, stralign="right"))
        return
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        if names:
            rows = _shown(pool, row, [(name, budget) for name in names])
            print(tabulate(rows, HEADERS, disable_numparse=True, stralign="right"))
        if given.curve:
            name, cluster, counts = CURVE
            (seconds,) = pool.map(curve_seconds, [None])
            print(f"profiling curve of {name} on {', '.join(map(str, counts))} devices of {cluster}: {seconds:.2f} s")


def _shown(pool: Any, of_case: Callable[[Any], list[str]], cases: list[Any]) -> list[list[str]]:
    from tqdm import tqdm

    return list(tqdm(pool.imap(of_case, cases, chunksize=1), total=len(cases), disable=None, leave=False))


if __name__ == "__main__":
    main()
