"""Find ToFu's strategy (Wang, Huang and Li, EuroSys 2019): every tensor is split over all devices, for the least memory.

This is ToFu as section 5.1 of the TensorOpt paper simulates it. No operator leaves a mesh axis unused while one of its
dimensions is long enough, so that nothing is replicated that could be split; a partial sum doesn't count as a split of a
tensor. As in ToFu the devices are halved again and again (here by the mesh's axes, the outermost first). Each round decides
for every operator which factor the next axis splits, with the earlier axes as decided before, for the least memory and
among those the least time. A round is a small problem, solved by a weighted search
(:mod:`...ft.weighted.weighted_search`) in which memory counts for nearly everything:

    round a:  config(op) = decided(op) on axes 0..a-1, one of its factors (or none, if none is long enough) on axis a
              least of  mem / most mem + TIME_COUNTS time / most time

The rounds together aren't claimed to be optimal: neither is ToFu's own recursion, where costs depend on which axis it is.

Complexity: axes x one search with as many configs per operator as it has factors.
"""

from __future__ import annotations

import math

from ...ft.problem import Problem
from ...ft.weighted.weighted_search import Least, WeightedSearch
from ...rules.rule import NONE, Config, Rule, why_invalid
from ..task import BaselineResult, BaselineTask, point_of

TIME_COUNTS = 1e-6
"""The weight of time against memory, each as a share of its maximum: all of the time is worth this share of memory."""
ROUNDING = 1e-9


def search(task: BaselineTask) -> BaselineResult:
    """Return ToFu's one point."""
    configs = {op.name: Config(task.mesh, (NONE,) * len(task.mesh.sizes)) for op in task.operators}
    problem = task.among({name: (config,) for name, config in configs.items()})
    optimum, worst_gap = _least_memory(problem.problem), 0.0
    for axis in task.mesh.axes:
        task.report(axis, len(task.mesh.sizes))
        choices = {name: longer(task.rules[name], config, axis) for name, config in configs.items()}
        problem = task.among(choices)
        optimum = _least_memory(problem.problem)
        worst_gap = max(worst_gap, _bound_gap(optimum))
        assert optimum.strategy is not None, "reshardings are possible between any two configs"
        strategy = problem.strategy(optimum.strategy.tolist())
        configs = {name: strategy.configs[name] for name in configs}
    note = f"not proven the least of every round: {worst_gap:.2%} above a lower bound at most" if worst_gap else ""
    return BaselineResult(problem, point_of(problem.problem, optimum, "tofu"), note)


def _least_memory(problem: Problem) -> Least:
    search = WeightedSearch(problem)
    most_mem, most_time = (max(bound, 1) for bound in search.most)
    return search.least((1.0, TIME_COUNTS * most_mem / most_time))


def _bound_gap(optimum: Least) -> float:
    """Return the share by which a found weighted cost may be above the least one; 0 where that is rounding."""
    cost = optimum.weights[0] * optimum.mem_bytes + optimum.weights[1] * optimum.time_ns
    gap = cost / max(optimum.bound, math.ulp(0.0)) - 1.0
    return gap if gap > ROUNDING else 0.0


def longer(rule: Rule, config: Config, axis: int) -> tuple[Config, ...]:
    """Return the configs that split one factor over one more axis; the config itself if no factor is long enough."""
    configs = []
    for factor in rule.splittable:
        assignment = (*config.assignment[:axis], factor, *config.assignment[axis + 1 :])
        if not why_invalid(rule, Config(config.mesh, assignment)):
            configs.append(Config(config.mesh, assignment))
    return tuple(configs) or (config,)
