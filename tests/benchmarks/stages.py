"""Compare steps in stages with those of the fastest plan without stages and of data parallelism, in turn.

    tests/benchmarks/two_machines.sh tests/benchmarks/stages.py [--layers 2] [--rounds 10] [--micro-batches 4,8]

The model is a Transformer whose embedding and output share their table; one thread a rank. The hardware is measured first.
The printed table has medians and quartiles; the ratio is of medians, to the fastest plan without stages. Below it stands for
each stage how long it is predicted to be busy, and the CPU time that its first rank took for a step, naps' looks included.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")

import statistics
import time
from collections.abc import Callable
from functools import partial

from harness import alternate
from tabulate import tabulate

from tensoropt import zoo
from tensoropt.common.progress import NOT_SHOWN
from tensoropt.plan.find_frontier import find_baseline, find_frontier
from tensoropt.plan.find_staged import find_staged
from tensoropt.plan.plan import Plan
from tensoropt.plan.request import Request
from tensoropt.plan.staged_plan import StagedPlan
from tensoropt.profiling.hardware import Hardware
from tensoropt.runtime.execute import MPI, execute
from tensoropt.runtime.local_hardware import hardware_here, prepared_processes
from tensoropt.runtime.pipeline.execute_staged import execute_staged
from tensoropt.runtime.ranks import Processes
from tensoropt.runtime.synthetic_batch import synthetic_step
from tensoropt.tools.offline import record
from tensoropt.tools.recorded import Recorded


def plans_of(
    recorded: Recorded, hardware: Hardware, processes: Processes, micro_batches: list[int]
) -> dict[str, Plan | StagedPlan]:
    """Return the plans that are compared, the same on all ranks."""
    values = {}
    if processes.rank == 0:
        frontier = find_frontier(recorded.model, hardware, processes.size)
        fastest = frontier.plan(frontier.found.fastest(), "mini_time")
        values = {"fastest": fastest.to_json(), "data parallel": find_baseline(frontier, "data-parallel").plan(0).to_json()}
        for n in micro_batches:
            request = Request(recorded.model, hardware, None, micro_batches=n)
            values[f"2 stages, {n} micro-batches"] = find_staged(request, processes.size, 2, None).to_json()
    values = processes.broadcast(values)
    return {
        name: StagedPlan.from_json(value) if "stages" in value else Plan.from_json(value) for name, value in values.items()
    }


def clocked(step: Callable[[], object], cpu_s: list[float]) -> Callable[[], None]:
    """Return a function that runs a step, and appends the seconds of CPU time that this process took."""

    def run() -> None:
        started_s = time.process_time()
        step()
        cpu_s.append(time.process_time() - started_s)

    return run


def stages_table(plan: StagedPlan, cpu_s: list[float]) -> str:
    """Return a table of stages: predicted busy time beside the CPU time of a step.

    Args:
        cpu_s: by rank, the median over steps.
    """
    rows = []
    for number, stage in enumerate(plan.stages):
        busy_ms, cpu_ms = (1 - stage.idle_share) * plan.time_us / 1e3, cpu_s[stage.devices[0]] * 1e3
        ends_with = stage.last_operator or "(the end)"
        rows.append([number, ends_with, stage.in_flight, f"{busy_ms:,.0f} ms", f"{cpu_ms:,.0f} ms"])
    return tabulate(rows, ["stage", "ends with", "in flight", "predicted busy", "CPU time"])


def step_of(recorded: Recorded, plan: Plan | StagedPlan, processes: Processes) -> Callable[[], object]:
    """Return a function that runs a step under a plan."""
    build = execute_staged if isinstance(plan, StagedPlan) else execute
    execution = build(plan, recorded.model, recorded.first_values(), processes, MPI)  # type: ignore[operator]
    return partial(execution.engine.run, *synthetic_step(recorded.model.graph))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=2, help="of the encoder, and as many of the decoder")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--micro-batches", default="4,8")
    given = parser.parse_args()
    processes = prepared_processes()
    hardware = hardware_here(processes, MPI, NOT_SHOWN)
    sizes = {"batch": 16, "length": 64, "layers": given.layers, "width": 256, "heads": 4, "inner": 1024, "vocabulary": 4096}
    recorded = record(lambda: zoo.transformer(**sizes), "transformer", "momentum")
    plans = plans_of(recorded, hardware, processes, [int(n) for n in given.micro_batches.split(",")])
    cpu_s: list[list[float]] = [[] for _ in plans]
    steps = [clocked(step_of(recorded, plan, processes), own) for plan, own in zip(plans.values(), cpu_s, strict=True)]
    timings = alternate(steps, given.rounds)
    by_rank = processes.gather([statistics.median(own[-given.rounds :]) for own in cpu_s])
    if processes.rank == 0:
        rows = [
            [name, f"{plan.time_us / 1e3:,.0f} ms", str(timing), f"{timing.median / timings[0].median:.3f}"]
            for (name, plan), timing in zip(plans.items(), timings, strict=True)
        ]
        print(tabulate(rows, ["plan", "predicted", "measured", "ratio"]))
        for number, (name, plan) in enumerate(plans.items()):
            if isinstance(plan, StagedPlan):
                print(f"\n{name}\n{stages_table(plan, [of_rank[number] for of_rank in by_rank])}")


if __name__ == "__main__":
    main()
