"""The peak of a stage's passes in any order, against a replay of all micro-batches in that order."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import product

import accumulate.models as models
import pytest
from helpers.large import first
from helpers.strategies import Link
from pipeline.staged import random_cuts, random_stage_view

from tensoropt.costs.model_costs import costing_of
from tensoropt.costs.operator_costs import OperatorCosting
from tensoropt.plan.stage_memory import ends_of
from tensoropt.profiling.hardware import named
from tensoropt.program.buffers import TaskBuffers
from tensoropt.program.deferral import StageEnds
from tensoropt.program.liveness import peak_of_program
from tensoropt.program.pass_memory import pass_memory
from tensoropt.program.schedule import BACKWARD, FORWARD, PARAMETERS, SCHEDULES, Pass, pass_orders
from tensoropt.program.step import step_program
from tensoropt.sharding.resharding import PathFinder
from tensoropt.sharding.strategy import StrategyView


def whole_peak(view: StrategyView, costing: OperatorCosting, ends: StageEnds, order: Iterable[Pass]) -> int:
    """Return the peak of a stage's step, of which all micro-batches are replayed, in the order of its passes."""
    order, path_finder = list(order), PathFinder(Link())
    if not any(each.work == PARAMETERS for each in order):
        both = [(each, each._replace(work=PARAMETERS)) if each.work == BACKWARD else (each,) for each in order]
        order = [each for some in both for each in some]
    program = step_program(view, path_finder, ends=ends)
    all_passes = product(range(program.n_micro_batches), (FORWARD, BACKWARD, PARAMETERS))
    begins = {each: at for at, each in enumerate(all_passes)}
    tasks, passes = list(program.tasks[: program.passes[0]]), []
    for each in order:
        at = begins[each.micro_batch, each.work]
        passes.append(len(tasks))
        tasks += program.tasks[program.passes[at] : program.passes[at + 1]]
    passes.append(len(tasks))
    tasks += program.tasks[program.passes[-1] :]
    assert sorted(map(str, tasks)) == sorted(map(str, program.tasks))
    in_order = replace(program, tasks=tuple(tasks), passes=tuple(passes))
    return peak_of_program(TaskBuffers(view, costing, path_finder, ends.received).instructions(in_order)).n_bytes


@pytest.mark.parametrize("seed", first(8, range(400)))
def test_the_peak_of_passes_in_a_random_order_is_that_of_replaying_all(seed: int) -> None:
    rng = random.Random(seed)
    model = models.recorded(rng.choice(list(models.FUNCTIONS)), rng.choice(("sgd", "adam")))
    n_trained = sum(op.is_trainable for op in model.graph.variables)
    stages = random_cuts(model, min(n_trained, rng.randint(2, 3)), seed)
    n, n_devices, index = rng.choice((2, 4, 8)), rng.choice((1, 2, 4)), rng.randrange(stages.n)
    hardware = replace(named(f"v100-1x{n_devices}"), exposed_share=rng.choice((0.5, 1.0)))
    mesh, sliced = hardware.mesh(n_devices), stages.models[index].in_micro_batches(n)
    view = random_stage_view(stages.models[index], n, mesh, seed, tuple(range(n_devices)), 0.3).per_micro_batch
    costing = costing_of(sliced, hardware, mesh)
    schedule, divides = rng.choice(SCHEDULES), rng.random() < 0.5
    in_flight, deferred = ([rng.randint(least, n) for _ in range(stages.n)] for least in (1, 0))
    order = pass_orders(schedule, n, in_flight, deferred)[index]
    divides = divides or any(each.work == PARAMETERS for each in order)
    ends = ends_of(stages.models[index], divides)
    found = pass_memory(view, costing, PathFinder(Link()), ends).peak_bytes(order, n)
    assert found == whole_peak(view, costing, ends, order)
