"""The search's arrays are the sums of the step program's tasks, for random strategies with all choices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from helpers import zoo
from helpers.large import first
from helpers.strategies import random_strategy

from tensoropt.costs.model_costs import costing_of
from tensoropt.costs.operator_costs import OperatorCosting
from tensoropt.ft.problem import INFEASIBLE
from tensoropt.profiling.hardware import Hardware, named
from tensoropt.program.buffers import TaskBuffers
from tensoropt.program.step import step_program
from tensoropt.program.tasks import BACKWARD, COMPUTE, FORWARD, REMATERIALIZED, RESHARD, SHARED, UPDATE, Task
from tensoropt.search.problem.builder import ProblemBuilder
from tensoropt.search.problem.choices import Choices
from tensoropt.search.problem.config_space import FULL
from tensoropt.search.problem.strategy_problem import StrategyProblem
from tensoropt.sharding.resharding import PathFinder, bucket_share_ns
from tensoropt.sharding.strategy import Copy, StrategyView

HARDWARE = (named("v100-1x4"), named("v100-2x2"), named("v100-1x3"))


def time_ns(view: StrategyView, costing: OperatorCosting, path_finder: PathFinder) -> int:
    """The time of all tasks, one after the other, with what operators communicate inside."""
    at, total = TaskBuffers(view, costing, path_finder), 0

    def of_operator(task: Task) -> tuple[int, int]:
        op = view.graph.operators[task.site.name]
        return of(op.name, costing.compute_time_ns), of(op.name, costing.backward_time_ns)

    def of(name: str, cost: Callable[..., int]) -> int:
        return cost(view.graph.operators[name], view.rules[name], view.strategy.configs[name], view.interfaces[name])

    for task in step_program(view, path_finder).tasks:
        if task.work == RESHARD:
            for value in task.writes:
                _, resharding = at.resharding_at(value.site)
                paths = path_finder.paths(resharding)
                if task.direction != BACKWARD:
                    total += path_finder.forward_ns(resharding)
                elif paths.in_bucket:
                    total += bucket_share_ns(resharding, path_finder.costs)
                else:
                    total += paths.backward.time_ns(path_finder.costs, resharding.item_bytes)
        elif task.work == COMPUTE:
            whole, backward = of_operator(task)
            total += backward if task.direction == BACKWARD else whole - backward
            if task.direction == FORWARD:
                op = view.graph.operators[task.site.name]
                ((inner, _),) = costing.inner_times_ns(op, view.rules[op.name], [view.strategy.configs[op.name]])
                total += inner
        elif task.work == UPDATE:
            total += of(task.site.name, costing.compute_time_ns)
            op = view.graph.operators[task.site.name]
            ((inner, _),) = costing.inner_times_ns(op, view.rules[op.name], [view.strategy.configs[op.name]])
            total += inner
    return total


def problem_ns(built: StrategyProblem, states: np.ndarray) -> int:
    """The time that the search's arrays say."""
    problem = built.problem
    total = sum(int(node.time_ns[state]) for node, state in zip(problem.nodes, states, strict=True))
    return total + sum(int(edge.time_ns[states[edge.source], states[edge.target]]) for edge in problem.edges)


def local_again_ns(view: StrategyView, costing: OperatorCosting, path_finder: PathFinder) -> int:
    """The time of copies that are cut out of something made again: the search counts it with what that is made by."""
    at, again = TaskBuffers(view, costing, path_finder), 0
    for task in step_program(view, path_finder).tasks:
        if task.work == RESHARD and task.direction == REMATERIALIZED:
            _, resharding = at.resharding_at(task.site)
            again += 0 if path_finder.paths(resharding).forward.communicates else path_finder.forward_ns(resharding)
    return again


def has_idle_choices(view: StrategyView, path_finder: PathFinder) -> bool:
    """Whether something is said to be made again that the backward pass doesn't ask for. The search charges it."""
    tasks = [task for task in step_program(view, path_finder).tasks if task.direction == REMATERIALIZED]
    operators = {task.site.name for task in tasks if task.work == COMPUTE}
    copies = {
        Copy(site.name)
        if site.kind == SHARED
        else Copy(view.graph.operators[site.name].inputs[site.position].name, site.name)
        for site in (task.site for task in tasks if task.work == RESHARD)
    }
    return bool(view.rematerialized - operators or view.strategy.regathered - copies)


@pytest.mark.parametrize("hardware", first(1, HARDWARE))
@pytest.mark.parametrize("function", (zoo.mlp, zoo.cnn, zoo.attention))
def test_the_time_of_a_problem_is_that_of_the_program(function: Callable[[], zoo.Built], hardware: Hardware) -> None:
    model = zoo.record(function, "momentum")
    mesh = hardware.mesh(hardware.n_devices)
    costing = costing_of(model.model, hardware, mesh)
    builder = ProblemBuilder(model.graph, model.model.backward, costing, mesh, FULL, {}, choices=Choices(reuse=True))
    path_finder, held, again = PathFinder(costing.reshardings.steps), 0, 0
    for built in filter(None, (builder.build(), builder.build_rematerializing())):
        for seed in range(60):
            drawn = random_strategy(model, mesh, seed, None, 0.1 * (seed % 2), 0.1 * (seed % 3))
            try:
                states = built.states_of(drawn.strategy)
            except (ValueError, StopIteration):
                continue  # not in the space: a fusion group has other configs, or a copy another sharding
            expected, view = problem_ns(built, states), model.model.view(built.strategy(states))
            if expected >= INFEASIBLE:
                continue
            if has_idle_choices(view, path_finder):
                assert time_ns(view, costing, path_finder) - local_again_ns(view, costing, path_finder) <= expected, seed
            else:
                assert time_ns(view, costing, path_finder) == expected, seed
                held += 1
                again += bool(view.rematerialized or view.strategy.regathered)
    assert held > 10 and again > 0
