"""Errors of predicted memory, by the sum of Equation (1) and by the replayed peak, for the same plans.

    tensoropt run -n 2 tests/benchmarks/memory_error.py [--models vgg16,rnn] [--random 20] [--frontier 10]
        [--micro-batches 4] [--stages 2]

In stages the plans are points of the frontier that is searched with so many, rematerialized ones among them, and no others.
The models, and how plans are chosen, are those of ``cost_error.py``, data parallelism among them; one thread a rank. Batches
are as many times as large as there are micro-batches and stages, or most tensors of a pass would be too small to be seen.
Each plan runs a few steps, of which one is traced. Other work on the machine matters little: only updates that wait for a
collective depend on time.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import replace

os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")

import numpy as np
from cost_error import MODELS, PERCENTILES, recorded_of
from random_plans import chosen_plans
from tabulate import tabulate

from tensoropt.plan.plan import Plan
from tensoropt.profiling.hardware import Hardware, Origin, named
from tensoropt.runtime.measuring.local_hardware import prepared_processes
from tensoropt.runtime.ranks import Processes
from tensoropt.search.candidates.plan_points import frontier_of_whole
from tensoropt.search.candidates.search_candidates import search_with_stages
from tensoropt.search.frontiers.find_frontier import find_baseline, find_frontier
from tensoropt.search.request import Request
from tensoropt.tools.plan_check import check_plan


def in_stages(request: Request, n_devices: int, n_frontier: int) -> Iterator[tuple[str, Plan]]:
    """Yield plans of the frontier in stages, at equal distances."""
    frontier = search_with_stages(request, n_devices).frontier()
    for point in dict.fromkeys(np.linspace(0, len(frontier) - 1, n_frontier).round().astype(int).tolist()):
        plan = frontier.plan(point)
        n_again = sum(op.is_rematerialized for op in plan.operators)
        yield f"{plan.schedule}, {n_again} operators rematerialized", plan


def errors_of(
    name: str, hardware: Hardware, processes: Processes, n_random: int, n_frontier: int, n_micro_batches: int, n_stages: int
) -> np.ndarray:
    """Return relative errors, float[plans, 2], of Equation (1) and of the peak; every rank must call it."""
    recorded = recorded_of(name, n_micro_batches * n_stages)
    plans = []
    if processes.rank == 0:
        request = Request(recorded.model, hardware, None, micro_batches=n_micro_batches)
        if n_stages > 1:
            chosen = list(in_stages(replace(request, stages=(n_stages,)), processes.size, n_frontier))
        else:
            frontier = find_frontier(request, processes.size)
            chosen = list(chosen_plans(frontier, n_random, n_frontier))
        if n_micro_batches == n_stages == 1:
            chosen.append(("data parallel", frontier_of_whole(find_baseline(frontier, "data-parallel")).plan(0)))
        plans = [(kind, plan.to_json()) for kind, plan in chosen]
    errors = []
    for kind, value in processes.broadcast(plans):
        plan = Plan.from_json(value)
        check = check_plan(plan, recorded.model, recorded.first_values(), processes, 1, hardware)
        predicted = np.array([plan.sum_bytes, check.memory.predicted])
        errors.append(predicted / check.memory.measured - 1)
        if processes.rank == 0:
            told = ", ".join(f"{value / 1e6:.2f}" for value in (*predicted, check.memory.measured))
            print(f"{name} {len(errors)}/{len(plans)} {kind}: by Equation (1), peak, measured: {told} MB", flush=True)
    return np.array(errors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--random", type=int, default=20)
    parser.add_argument("--frontier", type=int, default=10)
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--stages", type=int, default=1)
    arguments = parser.parse_args()
    processes = prepared_processes()
    # As measured here: ranks of one thread run in order, and send ahead what earlier stages wait for, which takes memory.
    hardware = replace(named(f"v100-1x{processes.size}"), measured=Origin("2026-11-30", "2.21.0", threads=1))
    rows = []
    for name in arguments.models.split(","):
        chosen = arguments.random, arguments.frontier, arguments.micro_batches, arguments.stages
        errors = errors_of(name, hardware, processes, *chosen)
        row = [name, str(len(errors))]
        for column in errors.T:
            values = [np.abs(column).mean(), *np.percentile(np.abs(column), list(PERCENTILES.values()))]
            row += [" / ".join(f"{value:.1%}" for value in values), f"{column.min():.1%} to {column.max():+.1%}"]
        rows.append(row)
    if processes.rank == 0:
        kinds = f"mean / {' / '.join(PERCENTILES)}"
        print(tabulate(rows, ["model", "plans", f"Equation (1): {kinds}", "from, to", f"peak: {kinds}", "from, to"]))


if __name__ == "__main__":
    main()
