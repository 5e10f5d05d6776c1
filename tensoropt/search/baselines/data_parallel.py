"""Build data parallelism's strategy: every operator splits the batch over all mesh axes; parameters are replicated.

Which factor of an operator is the batch follows from the placeholders' leading dimension (:mod:`.dimensions`). Reductions
over the batch produce partial sums, which consumers ask for replicated; the gradients of parameters are summed over all
devices. Where the batch is too short, or isn't divisible where it must be, it is split over as many axes as it can be.
"""

from __future__ import annotations

from ...rules.rule import Config
from ..task import BaselineResult, BaselineTask, of_one_strategy
from .dimensions import batch_dimension, by_operator, config_of, logical_dimensions, longest_split


def search(task: BaselineTask) -> BaselineResult:
    """Return data parallelism's one point."""
    return of_one_strategy(task, configs(task), "data-parallel")


def configs(task: BaselineTask) -> dict[str, Config]:
    """Return data parallelism's config for every operator, by name."""
    batch = batch_dimension(task.operators, task.rules, logical_dimensions(task.operators, task.rules))
    factors = {} if batch is None else by_operator(batch, task.rules)
    axes = () if batch is None else longest_split(batch, task.mesh, task.rules)
    return {
        op.name: config_of(task.rules[op.name], task.mesh, [(factors[op.name], axes)] if op.name in factors else ())
        for op in task.operators
    }
