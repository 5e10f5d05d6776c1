"""Train models with branches in two stages on two ranks, and hold losses and metrics to one device's.

    mpirun -n 2 python -m mpi4py tests/pipeline/branches_worker.py

It also checks the order: the rank of the second stage waits for nothing before it has computed its own branch.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from helpers.switches import graphs_as_built
from one_device.drawing import Draw, in_stages
from one_device.running import check_numbers, engine_of
from pipeline.test_branches import CUTS

from tensoropt.lowering.order import CALLBACK
from tensoropt.plan.plan import Plan
from tensoropt.runtime.engine import Engine
from tensoropt.runtime.measuring.local_hardware import prepared_processes
from tensoropt.sharding.stages import Stages

CASES = {"two_towers": ((1, "1f1b"), (2, "1f1b"), (2, "gpipe"), (4, "zero-bubble")), "siamese": ((1, "1f1b"), (2, "1f1b"))}


def products_before_waiting(engine: Engine) -> int:
    """Return how many products a training function computes before its rank waits for what another stage's pass computes."""
    (built,) = (function for (fetch, *_), function in engine._functions.items() if fetch.train_steps)
    receptions = [op for op in built.call.graph.get_operations() if op.type == CALLBACK and len(op.outputs) == 2]
    once = [each for each in engine.stages.crossings if each.target == 1 and each not in engine.stages.awaited]
    found, pending = set(), [receptions[len(once)]]
    while pending:
        each = pending.pop()
        if each.name not in found:
            found.add(each.name)
            pending += [tensor.op for tensor in each.inputs]
    return sum("MatMul" in name.rpartition("/")[2] for name in found)


def main() -> None:
    processes = prepared_processes()
    for name, cut in CUTS.items():
        for n, schedule in CASES[name]:
            draw = Draw(n, "random", name, "momentum", "v100-1x2", (1, 1), 2, schedule, n, "any", 0.3, 0.0, False)
            plan = in_stages(random.Random(n), draw, Stages(draw.model.model, (cut,)))
            plan = Plan.from_json(processes.broadcast(plan.to_json()))
            engine = engine_of(draw, plan, processes)
            check_numbers(draw, engine, processes)
            if processes.rank == 1:
                assert products_before_waiting(engine) >= 3, (name, n, schedule)
    if processes.rank == 0:
        print("branches on two ranks", flush=True)


if __name__ == "__main__":
    with graphs_as_built():
        main()
