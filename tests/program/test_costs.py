"""The search's arrays are the sums of the step program's tasks, for random strategies with all choices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from helpers import zoo
from helpers.large import first
from helpers.strategies import random_strategy
from one_device.models import adversarial
from oracles.idle_choices import without_idle_choices
from program.saved_bytes import SavedBytes

from tensoropt.costs.config_costs import costs_of_config
from tensoropt.costs.operator_costs import OperatorCosting, costing_of
from tensoropt.ft.problem import INFEASIBLE
from tensoropt.profiling.hardware import Hardware, named
from tensoropt.program.memory.buffers import TaskBuffers
from tensoropt.program.step import step_program
from tensoropt.program.tasks import BACKWARD, COMPUTE, OPERAND, REMATERIALIZED, RESHARD, UPDATE
from tensoropt.search.problem.builder import ProblemBuilder
from tensoropt.search.problem.choices import Choices
from tensoropt.search.problem.config_space import FULL
from tensoropt.search.problem.strategy_problem import StrategyProblem
from tensoropt.sharding.resharding import PathFinder, bucket_share_ns
from tensoropt.sharding.strategy import StrategyView

HARDWARE = (named("v100-1x4"), named("v100-2x2"), named("v100-1x3"))


def time_ns(view: StrategyView, costing: OperatorCosting, path_finder: PathFinder) -> int:
    """The time of all tasks, one after the other, with what operators communicate inside."""
    at, total, updated = TaskBuffers(view, costing, path_finder), 0, set[str]()
    for task in step_program(view, path_finder).tasks:
        if task.work == RESHARD:
            for value in task.writes:
                _, resharding = at.flow.resharded(value.site)
                paths = path_finder.paths(resharding)
                if task.direction != BACKWARD or paths.backward is None:  # rows that were found
                    total += path_finder.forward_ns(resharding)
                elif paths.shares_bucket:
                    total += bucket_share_ns(resharding, path_finder.costs)
                else:
                    total += paths.backward.time_ns(path_finder.costs, resharding.item_bytes)
        elif task.work == COMPUTE or (task.work == UPDATE and task.site.name not in updated):
            updated.add(task.site.name)
            op = view.graph.operators[task.site.name]
            costs = costs_of_config(costing, op, view.rules[op.name], view.strategy.configs[op.name])
            positions = frozenset(value.site.position for value in task.writes)
            is_backward = task.direction == BACKWARD and task.work == COMPUTE
            of_forward = costs.compute_ns - costs.backward_ns + costs.within_ns
            total += int((costs.by_pass_ns[positions] if is_backward else of_forward)[0])
    return total


def viewed_again_ns(view: StrategyView, costing: OperatorCosting, path_finder: PathFinder) -> int:
    """The time of copies for views that are cut out of something made again: the search counts it with that."""
    at, again = TaskBuffers(view, costing, path_finder), 0
    for task in step_program(view, path_finder).tasks:
        if task.work == RESHARD and task.direction == REMATERIALIZED and task.site.kind == OPERAND:
            operand = task.site.name, task.site.position
            is_own = operand in view.backward.residual_operands or task.site.name in view.rematerialized
            _, resharding = at.flow.resharded(task.site)
            if not is_own and not path_finder.paths(resharding).forward.communicates:
                again += path_finder.forward_ns(resharding)
    return again


def in_space(built: StrategyProblem, model: zoo.Recorded, view: StrategyView) -> np.ndarray | None:
    """The states of a strategy without idle choices; None if it isn't in the space or isn't allowed."""
    try:
        states = built.states_of(view.strategy)
    except (ValueError, StopIteration):
        return None  # a fusion group has other configs, or a copy another sharding
    return states if max(built.problem.cost(states.tolist())) < INFEASIBLE else None


@pytest.mark.parametrize("hardware", first(1, HARDWARE))
@pytest.mark.parametrize("function", (zoo.mlp, zoo.cnn, zoo.attention, zoo.windows, adversarial))
def test_the_costs_of_a_problem_are_those_of_the_program(
    function: Callable[[], zoo.Built], hardware: Hardware, everything: bool
) -> None:
    """Idle choices are dropped first: arrays charge what is said to be made again, whether or not it is read."""
    model = zoo.record(function, "momentum")
    mesh = hardware.mesh(hardware.n_devices)
    costing = costing_of(model.model, hardware, mesh)
    builder = ProblemBuilder(costing, mesh, FULL, {}, choices=Choices(reuse=True))
    path_finder, held, again, idle = PathFinder(costing.reshardings.steps), 0, 0, 0
    for built in filter(None, (builder.build(), builder.build_rematerializing())):
        for seed in range(60 if everything else 20):
            view = random_strategy(model, mesh, seed, None, 0.1 * (seed % 2), 0.1 * (seed % 3))
            for _ in range(2):  # what the space doesn't have is dropped first, such as a rematerialized operator
                states = in_space(built, model, without_idle_choices(view, path_finder))
                if states is None:
                    break
                view = model.model.view(built.strategy(states))
            if states is None:
                continue
            mem_bytes, expected_ns = built.problem.cost(states.tolist())
            mem_bytes -= sum(map(costing.looked_up_bytes, model.graph.step_operators))  # no task reads them back
            without = without_idle_choices(view, path_finder)
            saved = SavedBytes(without, costing, path_finder)
            costs_ns = time_ns(without, costing, path_finder) - viewed_again_ns(without, costing, path_finder)
            if is_idle(view, without) and (saved.charged, costs_ns) != (mem_bytes, expected_ns):
                assert saved.own <= mem_bytes and costs_ns <= expected_ns, seed
                idle += 1
                continue
            assert costs_ns == expected_ns, seed
            assert saved.own <= saved.charged == mem_bytes, seed
            held += 1
            again += bool(without.rematerialized or without.strategy.regathered)
    assert held > (1 if function is adversarial else 10) * idle and held > 10 and again > 0


def is_idle(view: StrategyView, without: StrategyView) -> bool:
    """Return whether the strategy regathers or rematerializes what no task of its backward pass reads."""
    return view.rematerialized != without.rematerialized or view.strategy.regathered != without.strategy.regathered
