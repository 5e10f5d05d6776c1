"""Data parallelism: every operator splits the batch over all axes, parameters are replicated.

What the batch is of an operator follows from the placeholders' leading dimension (:mod:`.dimensions`). Reductions over the
batch leave partial sums, which whoever takes them asks for in whole; the gradients of parameters are summed over all
devices. Where the batch is too short, or doesn't divide where it must, it is split over as many axes as it can be.
"""

from __future__ import annotations

from ...rules.rule import Config
from .dimensions import batch_dimension, by_operator, config_of, logical_dimensions, longest_split
from .single import of_one_strategy
from .task import Answer, Task


def search(task: Task) -> Answer:
    """Data parallelism's one point."""
    return of_one_strategy(task, configs(task), "data-parallel")


def configs(task: Task) -> dict[str, Config]:
    """A config for every operator, by name."""
    batch = batch_dimension(task.operators, task.rules, logical_dimensions(task.operators, task.rules))
    factors = {} if batch is None else by_operator(batch, task.rules)
    axes = () if batch is None else longest_split(batch, task.mesh, task.rules)
    return {
        op.name: config_of(task.rules[op.name], task.mesh, [(factors[op.name], axes)] if op.name in factors else ())
        for op in task.operators
    }
