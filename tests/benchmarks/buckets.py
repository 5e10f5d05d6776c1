"""Steps of data parallelism with small gradients summed together and one by one, alternating.

    tensoropt run -n 2 tests/benchmarks/buckets.py [--models transformer,rnn] [--rounds 30]

One thread a rank. The models are those of ``cost_error.py``. The last columns count the collectives of a step.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

os.environ["TF_NUM_INTRAOP_THREADS"] = "1"

from cost_error import MODELS
from tabulate import tabulate

from tensoropt import zoo
from tensoropt.plan.find_frontier import find_frontier
from tensoropt.plan.plan import Plan
from tensoropt.profiling.hardware import named
from tensoropt.runtime.local_hardware import prepared_processes
from tensoropt.sharding import resharding as reshardings
from tensoropt.tools.instrumented_run import PlanTrial
from tensoropt.tools.offline import record

SMALL_BYTES = reshardings.SMALL_BYTES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    processes, rows = prepared_processes(), []
    hardware = named(f"v100-1x{processes.size}")
    for name in arguments.models.split(","):
        function, sizes = MODELS[name]
        recorded = record(lambda: zoo.find(function)(**sizes), name, "momentum")  # noqa: B023
        found = find_frontier(recorded.model, hardware, processes.size, algorithm="data-parallel")
        plan = Plan.from_json(processes.broadcast(found.plan(0).to_json()))
        trials, seconds = {}, {}
        for small_bytes in (SMALL_BYTES, 0):
            reshardings.SMALL_BYTES = small_bytes
            trials[small_bytes] = PlanTrial.of(plan, recorded.model, recorded.first_values(), processes)
            seconds[small_bytes] = []
        for _ in range(arguments.rounds):
            for small_bytes, trial in trials.items():
                processes.barrier()
                started = time.perf_counter()
                trial.step()
                seconds[small_bytes].append(time.perf_counter() - started)
        reshardings.SMALL_BYTES = SMALL_BYTES
        ratios = [alone / together for together, alone in zip(*seconds.values(), strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        times = [f"{1e3 * statistics.median(each):.1f}" for each in seconds.values()]
        rows.append([name, *times, f"{middle:.3f} ({low:.3f} to {high:.3f})", *(len(each.log) for each in trials.values())])
    if processes.rank == 0:
        headers = ["model", "together ms", "one by one ms", "ratio (quartiles)", "collectives together", "one by one"]
        print(tabulate(rows, headers, disable_numparse=True))


if __name__ == "__main__":
    main()
