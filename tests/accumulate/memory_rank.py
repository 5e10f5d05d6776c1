"""A rank that runs a model whose results take most of its memory, in each of the given numbers of micro-batches."""

import os
import sys

os.environ["TF_NUM_INTRAOP_THREADS"] = "1"

import tensoropt
from tensoropt.ft import Budget
from tensoropt.profiling.hardware import named
from tensoropt.runtime.measuring.local_hardware import prepared_processes
from tensoropt.search.candidates.plan_points import frontier_of_whole
from tensoropt.search.frontiers.find_frontier import find_frontier
from tensoropt.search.request import Request
from tensoropt.tools.offline import record
from tensoropt.tools.plan_check import check_plan

LAYERS, WIDTH, BATCH = 12, 256, 4096


def deep():
    """Layers whose results are 4 MiB of a batch, and whose parameters are 0.25 MiB."""
    value = tensoropt.placeholder(tensoropt.float32, [BATCH, WIDTH], name="x")
    for i in range(LAYERS):
        value = tensoropt.tanh(tensoropt.matmul(value, tensoropt.get_variable(f"w{i}", [WIDTH, WIDTH])))
    return tensoropt.reduce_mean(tensoropt.square(value))


# With one core operators run in one order; with more, what is there at once depends on what else runs.
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
processes = prepared_processes()
hardware = named(f"v100-1x{processes.size}")
recorded = record(deep, "deep", "momentum")
for n in map(int, sys.argv[1:]):
    asked = Request(recorded.model, hardware, None, micro_batches=n, budget=Budget(seconds=0))
    plan = frontier_of_whole(find_frontier(asked, processes.size)).fastest()
    check = check_plan(plan, recorded.model, recorded.first_values(), processes, 3, hardware)
    if processes.rank == 0:
        print(f"{n} micro-batches: {check.memory.predicted:.0f} of {check.memory.measured:.0f} bytes", flush=True)
