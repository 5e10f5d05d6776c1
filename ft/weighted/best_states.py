"""Go back through the eliminations of a weighted search and choose each variable's best state.

Layers that are alike mostly choose alike. What a step chooses depends on its tables and on the states of their other
variables alone, so equal steps, with the same states around them, choose once.

Complexity: O(steps x tables of a step), and O(K) for each table of a step that is met first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ..problem import Floats
from .elimination_plan import EliminationPlan
from .elimination_steps import EliminationStep


def best_states(
    plan: EliminationPlan, tables: Sequence[Floats], own: Mapping[int, Sequence[Floats]], folds: bool
) -> npt.NDArray[np.int32]:
    """Return each variable's best state, from the last eliminated to the first, by the tables of all of its buckets.

    Args:
        tables: the numbers of each table of the plan.
        own: by variable, each bucket's share of the variable's own cost.
        folds: whether equal steps of the plan have equal tables and shares.
    """
    states = [0] * len(plan.n_states)
    cache: dict[tuple[int, ...], int] = {}
    for step in reversed(plan.steps):
        kind = plan.same[step.buckets[0].result] if folds else step.buckets[0].result
        key = kind, *[states[variable] for variable in plan.neighbours[step.variable]]
        if key not in cache:
            cache[key] = _best(plan, tables, own, step, states)
        states[step.variable] = cache[key]
    return np.array(states, np.int32)


def _best(
    plan: EliminationPlan,
    tables: Sequence[Floats],
    own: Mapping[int, Sequence[Floats]],
    step: EliminationStep,
    states: Sequence[int],
) -> int:
    """Return the best state of a step's variable, given the states of the variables that were eliminated later."""
    costs: Floats = sum(own[step.variable][1:], own[step.variable][0])
    for operand in (operand for bucket in step.buckets for operand in bucket.inputs):
        shape = plan.shapes[operand.table]
        index = tuple(
            class_of if v == step.variable else class_of[states[v]]
            for v, class_of in zip(shape.scope, shape.classes, strict=True)
        )
        costs = costs + tables[operand.table][index]
    return int(costs.argmin())
