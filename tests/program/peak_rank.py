"""A rank that runs strategies of a model, and holds the peaks that were foretold against what it took.

``random MODEL N``: N random strategies, that make nothing again. ``frontier MODEL N``: N points of a frontier of all
choices, at equal distances. ``SCHEDULE MODEL N``: N points of one in four micro-batches, and in four stages on two ranks.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

os.environ["TF_NUM_INTRAOP_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.random_plans import chosen_plans

from tensoropt import zoo
from tensoropt.ft import Budget
from tensoropt.plan.plan import Plan
from tensoropt.profiling.hardware import Origin, named
from tensoropt.program.orders.schedule import SCHEDULES
from tensoropt.runtime.measuring.local_hardware import prepared_processes
from tensoropt.search.candidates.search_candidates import search_with_stages
from tensoropt.search.frontiers.find_frontier import find_frontier
from tensoropt.search.request import Request
from tensoropt.tools.offline import record
from tensoropt.tools.plan_check import check_plan

# Tensors of 256 KiB and more: the profiler sees all of them.
MODELS = {
    "rnn": lambda: zoo.rnn(batch=256, steps=3, layers=1, hidden=1024, vocabulary=2048),
    "deep_rnn": lambda: zoo.rnn(batch=256, steps=6, layers=2, hidden=1024, vocabulary=2048),
    "wide_resnet": lambda: zoo.wide_resnet(batch=32, image=32, depth=10, widening=4),
    "transformer": lambda: zoo.transformer(batch=32, length=64, layers=1, width=256, heads=4, vocabulary=2048),
    "vgg16": lambda: zoo.vgg16(batch=64, image=32, widths=(32, 64, 128, 256, 256), hidden=(1024, 1024), classes=100),
}
kind, name, n_plans = sys.argv[1:]
processes = prepared_processes()
hardware = named(f"v100-1x{processes.size}")
recorded = record(MODELS[name], name, "momentum")
plans = []
if processes.rank == 0 and kind in SCHEDULES:
    in_order = replace(hardware, measured=Origin("2026-11-30", "2.21.0", threads=1))
    asked = Request(recorded.model, in_order, None, micro_batches=4, stages=(4,), schedule=kind)
    of_stages = search_with_stages(asked, processes.size).frontier()
    plans = [of_stages.plan(len(of_stages) * number // int(n_plans)).to_json() for number in range(int(n_plans))]
elif processes.rank == 0:
    without = frozenset(["reuse", "remat"] if kind == "random" else [])
    asked = Request(recorded.model, hardware, None, without=without, budget=Budget(seconds=1.0))
    frontier = find_frontier(asked, processes.size)
    found = chosen_plans(frontier, *((int(n_plans), 0) if kind == "random" else (0, int(n_plans))))
    plans = [plan.to_json() for _, plan in found]
for number, value in enumerate(processes.broadcast(plans)):
    plan = Plan.from_json(value)
    check = check_plan(plan, recorded.model, recorded.first_values(), processes, 1, hardware)
    if processes.rank == 0:
        is_rematerialized = any(op.is_rematerialized for op in plan.operators)
        told = f"plan {number}: {check.memory.predicted:.0f} of {check.memory.measured:.0f}"
        print(told + " computed again" * is_rematerialized, flush=True)
