"""Replays of all micro-batches of a stage's step, in any order of its passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
from helpers.strategies import Link

from tensoropt.costs.operator_costs import OperatorCosting
from tensoropt.program.memory.buffers import TaskBuffers
from tensoropt.program.memory.liveness import peak_of_program
from tensoropt.program.orders.passes import BACKWARD, FORWARD, PARAMETERS, Pass
from tensoropt.program.stage_ends import StageEnds
from tensoropt.program.step import step_program
from tensoropt.sharding.resharding import PathFinder
from tensoropt.sharding.strategy import StrategyView


def with_parameters(order: Iterable[Pass]) -> list[Pass]:
    """Return an order in which each backward pass is followed by that of its parameters, if the order has none of these."""
    passes = list(order)
    if any(each.work == PARAMETERS for each in passes):
        return passes
    both = [(each, each._replace(work=PARAMETERS)) if each.work == BACKWARD else (each,) for each in passes]
    return [each for some in both for each in some]


def bytes_of_passes(
    view: StrategyView, costing: OperatorCosting, ends: StageEnds, order: Iterable[Pass]
) -> list[np.ndarray]:
    """Return the bytes that are alive at each instruction of a step whose passes run in an order.

    Returns:
        Those before the first pass, those of each pass of :func:`with_parameters`, and those behind the last one. A pass's
        first ones are what is alive between passes.
    """
    order, path_finder = with_parameters(order), PathFinder(Link())
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
    buffers = TaskBuffers(view, costing, path_finder, ends)
    instructions = buffers.instructions(replace(program, tasks=tuple(tasks), passes=tuple(passes)))
    alive = np.zeros(len(instructions), np.int64)

    def observe(index: int, sizes: Counter[str]) -> None:
        alive[index] = sizes.total() + instructions[index].scratch_bytes

    peak_of_program(instructions, observe)
    starts = buffers.sizes.passes
    inner = [alive[first : last + 1] for first, last in pairwise(starts)]
    return [alive[: starts[0] + 1], *inner, alive[starts[-1] :]]
