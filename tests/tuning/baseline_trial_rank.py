"""One rank on which a plan and data parallelism take interleaved steps.

Usage: baseline_trial_rank.py WIDTH BATCH [OPERATOR:FACTOR ...]

The model is three wide layers. The plan is the fastest of those that do what is forced: each named operator splits its
factor in two. Prints on every rank what was chosen, when asked once, and again by what the first left in the store.
"""

import gc
import sys
from contextlib import closing
from dataclasses import replace

import numpy as np

import tensoropt
from tensoropt.frontend.initial_values import FirstValues
from tensoropt.profiling.compute import cpu_name
from tensoropt.profiling.hardware import named
from tensoropt.runtime.engine import Engine
from tensoropt.runtime.execute import MPI
from tensoropt.search.candidates.plan_points import frontier_of_whole
from tensoropt.search.frontiers.find_frontier import find_frontier
from tensoropt.search.request import Request
from tensoropt.tuning.baseline_trial import BaselineTrial, runs_as
from tensoropt.tuning.profile_guided import opened_store

width, batch, *forced = sys.argv[1:]
# Hardware on which all plans that compute as much are predicted to be about as fast.
described = named("v100-1x2")
device = replace(described.device, name=cpu_name(), memory_bytes_per_s=1e15)
levels = tuple(replace(level, latency_us=1e-3, bytes_per_s=1e15) for level in described.levels)
session = tensoropt.init(hardware=replace(described, device=device, levels=levels), seed=1)
features = tensoropt.placeholder("float32", [int(batch), int(width)])
hidden = features
for layer in range(3):
    weights = tensoropt.get_variable(f"weights{layer}", [int(width), int(width)])
    hidden = tensoropt.nn.relu(tensoropt.matmul(hidden, weights))
loss = tensoropt.reduce_mean(hidden * hidden)
step = tensoropt.GradientDescentOptimizer(0.01).minimize(loss)
model, processes = session.model(), session.processes
on_first_rank = session.context.on_first_rank
force = {name: {factor: 2} for name, factor in (each.split(":") for each in forced)}


def find():
    return frontier_of_whole(find_frontier(Request(model, session.hardware, None, force), 2)).fastest()


with session.recording_for("a baseline trial").paused(), closing(opened_store(processes)) as store:
    plan = on_first_rank(find)
    runs = []

    def first_values():
        runs.append(1)
        return FirstValues(session.recording_for("a baseline trial").graph)

    def told(plan):
        return {"measured": 0, "predicted": len(plan.operators), "measured_time_percent": 0.0}

    baseline_trial = BaselineTrial(
        processes=processes, model=model, first_values=first_values, collectives=MPI, limit_bytes=None, budget_s=60.0,
        store=store, stats=told,
    )
    first, again = (baseline_trial.winner(plan, on_first_rank) for _ in range(2))
assert not any(isinstance(each, Engine) for each in gc.get_objects()), "what was built for a while is still there"
taken = first.assumed.get("interleaved_steps", {})
assert again.assumed.get("interleaved_steps", {}) == taken
assert runs_as(again) == runs_as(first)
assert (runs_as(first) == runs_as(plan)) == (taken.get("chosen") != "data parallelism")
tensoropt.build_execution_graph(plan=first)
value = tensoropt.run([step, loss], {features: np.full([int(batch), int(width)], 0.1, np.float32)})[1]
print(f"{taken.get('chosen')}, {len(runs)} built, loss {float(value)!r}", flush=True)
if processes.rank == 0:
    print(first.explain(), file=sys.stderr)
