"""Time and memory of steps whose backward pass has a fixed order, and of steps of the same plan without, interleaved.

    tensoropt run -n 2 tests/benchmarks/order.py [--models vgg16,rnn] [--steps 12]

The models are those of ``cost_error.py``, the plan is the fastest. A single rank has all cores of the machine; with ``-n 2``
on two cores each rank has one. Peaks are what the profiler saw in one step, without parameters and slots.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from cost_error import MODELS
from tabulate import tabulate

from tensoropt import zoo
from tensoropt.plan.plan import Plan
from tensoropt.profiling.hardware import named
from tensoropt.profiling.trace import traced_step
from tensoropt.program.fetch import Fetch
from tensoropt.runtime.engine import Engine
from tensoropt.runtime.execute import MPI
from tensoropt.runtime.execution import execute
from tensoropt.runtime.measuring.local_hardware import prepared_processes
from tensoropt.runtime.measuring.synthetic_batch import synthetic_batch
from tensoropt.runtime.ranks import Processes
from tensoropt.runtime.step.functions import Feed
from tensoropt.search.asked import Request
from tensoropt.search.candidates.whole_frontier import frontier_of_whole
from tensoropt.search.frontiers.find_frontier import find_frontier
from tensoropt.tools.offline import record

WARM_STEPS = 2


def row(name: str, processes: Processes, steps: int) -> list[str]:
    """Return one model's line of the table; every rank must call it."""
    function, sizes = MODELS[name]
    recorded = record(lambda: getattr(zoo, function)(**sizes), name, "momentum")
    found = None
    if processes.rank == 0:
        asked = Request(recorded.model, named(f"v100-1x{processes.size}"), None)
        found = frontier_of_whole(find_frontier(asked, processes.size)).fastest().to_json()
    plan, graph = Plan.from_json(processes.broadcast(found)), recorded.model.graph
    fetch = Fetch(tuple((step.loss, False) for step in graph.train_steps.values()), tuple(graph.train_steps))
    feeds = {Feed(tensor, False): value for tensor, value in synthetic_batch(graph).items()}
    engines: list[Engine] = []
    for in_order in (False, True):
        engines.append(execute(plan, recorded.model, recorded.first_values(), processes, MPI).engine)
        engines[-1].in_order = in_order
        for _ in range(WARM_STEPS):
            engines[-1].run(fetch, feeds)
    times_ms: list[list[float]] = [[], []]
    for number in range(steps):
        for which in (0, 1) if number % 2 else (1, 0):
            processes.barrier()
            started = time.perf_counter()
            engines[which].run(fetch, feeds)
            times_ms[which].append(1e3 * (time.perf_counter() - started))
    cells = [name]
    for engine, taken in zip(engines, times_ms, strict=True):
        low, middle, high = np.percentile(taken, [25, 50, 75])
        trace = traced_step(lambda engine=engine: engine.run(fetch, feeds))
        cells += [f"{middle:.0f} ({low:.0f} to {high:.0f})", f"{trace.peak_bytes / 1e6:.1f}"]
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--steps", type=int, default=12)
    arguments = parser.parse_args()
    processes = prepared_processes()
    rows = [row(name, processes, arguments.steps) for name in arguments.models.split(",")]
    if processes.rank == 0:
        print(tabulate(rows, ["model", "open: ms", "open: peak MB", "in order: ms", "in order: peak MB"]))


if __name__ == "__main__":
    main()
