"""A rank that runs a plan which keeps its gathered parameters, and the same plan which gathers them again."""

import os

os.environ["TF_NUM_INTRAOP_THREADS"] = "1"

import tensoropt
from tensoropt.profiling.hardware import named
from tensoropt.runtime.measuring.local_hardware import prepared_processes
from tensoropt.search.candidates.whole_frontier import frontier_of_whole
from tensoropt.search.frontiers.find_frontier import find_frontier
from tensoropt.search.request import Request
from tensoropt.tools.offline import record
from tensoropt.tools.plan_check import check_plan

LAYERS, WIDTH, BATCH = 6, 768, 64


def deep():
    """Layers of one width; the profiler sees their parameters' gathered copies, of 2.25 MiB."""
    value = tensoropt.placeholder(tensoropt.float32, [BATCH, WIDTH], name="x")
    for i in range(LAYERS):
        value = tensoropt.tanh(tensoropt.matmul(value, tensoropt.get_variable(f"w{i}", [WIDTH, WIDTH])))
    return tensoropt.reduce_sum(value)


processes = prepared_processes()
hardware = named(f"v100-1x{processes.size}")
recorded = record(deep, "deep", "sgd")
forced = {"Variable": {"d0": 2}, "MatMul": {"m": 2}, "Tanh": {"d0": 2}, "Placeholder": {"d0": 2}}
frontier = frontier_of_whole(find_frontier(Request(recorded.model, hardware, None, forced), processes.size))
for plan in (frontier.fastest(), frontier.smallest()):
    check = check_plan(plan, recorded.model, recorded.first_values(), processes, 1, hardware)
    if processes.rank == 0:
        n_regathered, memory = len(plan.stages[0].strategy.regathered), check.memory
        print(f"{n_regathered} made again: {memory.predicted:.0f} of {memory.measured:.0f}", flush=True)
