"""A rank that runs random strategies of a recurrent network, and holds the peaks that were foretold against what it took."""

import os

os.environ["TF_NUM_INTRAOP_THREADS"] = "1"

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tensoropt import zoo
from tensoropt.frontier import ModelFrontier, find_frontier
from tensoropt.ft import Frontier
from tensoropt.ft.problem import INFEASIBLE
from tensoropt.here import prepared_processes
from tensoropt.offline import record
from tensoropt.plan import Plan
from tensoropt.plan_check import check_plan
from tensoropt.profiling.hardware import named

N_PLANS = 4


def random_plans(frontier: ModelFrontier) -> Iterator[Plan]:
    """Half of the operators as at some point of the frontier, the others by any config."""
    rng, problem = np.random.default_rng(0), frontier.built.problem
    for _ in range(N_PLANS):
        states = frontier.found.strategies[rng.integers(len(frontier.found))].copy()
        for node in np.flatnonzero(rng.random(len(states)) < 0.5):
            states[node] = rng.integers(problem.nodes[node].n_states)
        for edge in problem.edges:
            # The choices about a copy depend on how its source is left.
            possible = np.flatnonzero(edge.time_ns[states[edge.source]] < INFEASIBLE)
            if states[edge.target] not in possible:
                states[edge.target] = rng.choice(possible)
        mem_bytes, time_ns = (np.array([cost], np.int64) for cost in problem.cost(states.tolist()))
        yield replace(frontier, found=Frontier(mem_bytes, time_ns, states[None], {}, "random")).plan(0)


processes = prepared_processes()
hardware = named(f"v100-1x{processes.size}")
# Tensors of 256 KiB and more: the profiler sees all of them.
recorded = record(lambda: zoo.rnn(batch=256, steps=3, layers=1, hidden=1024, vocabulary=2048), "rnn", "momentum")
plans = []
if processes.rank == 0:
    # Copies that are made again are measured in tests/reuse, operators that are computed again in tests/remat.
    frontier = find_frontier(recorded.model, hardware, processes.size, without=["reuse", "remat"])
    plans = [plan.to_json() for plan in random_plans(frontier)]
for number, value in enumerate(processes.broadcast(plans)):
    check = check_plan(Plan.from_json(value), recorded.model, recorded.first_values(), processes, 1, hardware)
    if processes.rank == 0:
        print(f"plan {number}: {check.memory.predicted:.0f} of {check.memory.measured:.0f}", flush=True)
