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
from tensoropt.profiling.hardware import named
from tensoropt.program.buffers import TaskBuffers
from tensoropt.program.step import step_program
from tensoropt.program.tasks import BACKWARD, COMPUTE, FORWARD, RESHARD, UPDATE, Task
from tensoropt.search.problem.builder import ProblemBuilder
from tensoropt.search.problem.choices import Choices
from tensoropt.search.problem.config_space import FULL
from tensoropt.search.problem.strategy_problem import StrategyProblem
from tensoropt.sharding.resharding import Router, bucket_share_ns
from tensoropt.sharding.strategy import StrategyView

HARDWARE = (named("v100-1x4"), named("v100-2x2"), named("v100-1x3"))


def time_ns(view: StrategyView, costing: OperatorCosting, router: Router) -> int:
    """The time of all tasks, one after the other, with what operators communicate inside."""
    at, total = TaskBuffers(view, costing, router), 0

    def of_operator(task: Task) -> int:
        op = view.graph.operators[task.place.name]
        return of(op.name, costing.compute_time_ns), of(op.name, costing.backward_time_ns)

    def of(name: str, cost: Callable[..., int]) -> int:
        return cost(view.graph.operators[name], view.rules[name], view.strategy.configs[name], view.interfaces[name])

    for task in step_program(view, router).tasks:
        if task.work == RESHARD:
            for value in task.writes:
                _, resharding = at.resharding_at(value.place)
                route = router.route(resharding)
                if task.direction != BACKWARD:
                    total += router.forward_ns(resharding)
                elif route.in_bucket:
                    total += bucket_share_ns(resharding, router.costs)
                else:
                    total += route.backward.time_ns(router.costs, resharding.item_bytes)
        elif task.work == COMPUTE:
            whole, backward = of_operator(task)
            total += backward if task.direction == BACKWARD else whole - backward
            if task.direction == FORWARD:
                op = view.graph.operators[task.place.name]
                ((inner, _),) = costing.inner_times_ns(op, view.rules[op.name], [view.strategy.configs[op.name]])
                total += inner
        elif task.work == UPDATE:
            total += of(task.place.name, costing.compute_time_ns)
            op = view.graph.operators[task.place.name]
            ((inner, _),) = costing.inner_times_ns(op, view.rules[op.name], [view.strategy.configs[op.name]])
            total += inner
    return total


def problem_ns(built: StrategyProblem, states: np.ndarray) -> int:
    """The time that the search's arrays say."""
    problem = built.problem
    total = sum(int(node.time_ns[state]) for node, state in zip(problem.nodes, states, strict=True))
    return total + sum(int(edge.time_ns[states[edge.source], states[edge.target]]) for edge in problem.edges)


@pytest.mark.parametrize("hardware", first(2, HARDWARE))
@pytest.mark.parametrize("function", (zoo.mlp, zoo.cnn, zoo.attention))
def test_the_time_of_a_problem_is_that_of_the_program(function: Callable[[], zoo.Built], hardware) -> None:
    model = zoo.record(function, "momentum")
    mesh = hardware.mesh(hardware.n_devices)
    costing = costing_of(model.model, hardware, mesh)
    builder = ProblemBuilder(
        model.graph, model.model.backward, costing, mesh, FULL, {}, None, choices=Choices(reuse=True, zero=True)
    )
    router, held = Router(costing.reshardings.steps), 0
    for built in filter(None, builder.build_with_rematerialization()):
        for seed in range(30):
            drawn = random_strategy(model, mesh, seed, None, 0.5 * (seed % 2), 0.4 * (seed % 3))
            try:
                states = built.states_of(drawn.strategy)
            except (ValueError, KeyError, IndexError):
                continue  # not in the space
            expected = problem_ns(built, states)
            if expected >= INFEASIBLE:
                continue
            view = model.model.view(built.strategy(states))
            assert time_ns(view, costing, router) == expected, seed
            held += 1
    assert held > 5, held
