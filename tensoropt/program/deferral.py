"""Divide a backward pass: what an earlier stage of a pipeline waits for, and what can be deferred.

A task is deferred unless a gradient that is sent back needs it. The gradient of an operator that is needed for one operand
and not for another becomes two tasks, if TensorFlow computes these gradients apart.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from ..ir.body import COMPOSITES, VALUE_SHAPED
from ..ir.graph import Operator
from .tasks import BACKWARD, COMPUTE, Task, Value


def has_separate_gradients(op: Operator) -> bool:
    """Return whether each operand's gradient of an operator can be computed for itself, for about its share of the time.

    Those of loops, of functions, and of batch normalisation are computed together.
    """
    return op.type not in (*COMPOSITES, VALUE_SHAPED) and not op.type.startswith("FusedBatchNorm")


def divided(
    tasks: Sequence[Task], ends: Collection[Value], aliases: Mapping[Value, Value], operators: Mapping[str, Operator]
) -> tuple[list[Task], list[Task]]:
    """Return the tasks of a backward pass that some gradients need, and those that can be deferred, both in their order.

    Args:
        aliases: what is another value itself.
        operators: the operators by name.
    """
    needs = set(ends)
    first: list[Task] = []
    deferred: list[Task] = []
    for task in reversed(tasks):
        urgent = tuple(value for value in task.writes if value in needs)
        others = tuple(value for value in task.writes if value not in needs)
        if not urgent:
            deferred.append(task)
            continue
        is_divided = others and task.work == COMPUTE and task.direction == BACKWARD
        if is_divided and has_separate_gradients(operators[task.site.name]):
            deferred.append(replace(task, writes=others))
            task = replace(task, writes=urgent)
        first.append(task)
        needs.update(aliases.get(value, value) for value in (*task.all_reads, *task.after))
    return first[::-1], deferred[::-1]
