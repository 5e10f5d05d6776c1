"""One rank of a script that searches by measured operators and trains a step.

Usage: profile_guided_rank.py [STAGES]
"""

import sys
from dataclasses import replace

from helpers import zoo

import tensoropt
from tensoropt.profiling.compute import cpu_name
from tensoropt.profiling.hardware import named

described = named("v100-1x2")
session = tensoropt.init(hardware=replace(described, device=replace(described.device, name=cpu_name())), seed=1)
built = zoo.mlp(tensoropt, batch=8)
step = tensoropt.GradientDescentOptimizer().minimize(built.loss)
stages = [int(text) for text in sys.argv[1].split(",")] if sys.argv[1:] else None
plan = tensoropt.find_strategy(profile_budget="1s", stages=stages)
told = plan.assumed["operators"]
tensoropt.build_execution_graph(plan=plan)
loss = tensoropt.run([step, built.loss], {fed: batches[0] for fed, batches in built.inputs.items()})[1]
rank = session.processes.rank
print(f"rank {rank}: {told['measured'] + told['predicted']} operators, {plan.time_us} us, loss {float(loss)}", flush=True)
