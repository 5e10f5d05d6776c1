"""Tell of a graph what is the same wherever it is cut into stages, once, as many cuts are tried."""

from __future__ import annotations

from functools import lru_cache

from ..common.errors import InputError
from ..ir.graph import CONSTANT, SOURCES, Graph
from ..rules.random import FROM_KEY, FROM_SEED


@lru_cache(maxsize=4)
def following(graph: Graph) -> frozenset[str]:
    """Return the names of the operators that follow from variables and constants alone."""
    operators = (op for op in graph.operators.values() if op.updates is None and op.outputs)
    return frozenset(op.name for op in operators if all(tensor.name in graph.made_of_variables for tensor in op.outputs))


@lru_cache(maxsize=4)
def backwards(graph: Graph) -> list[tuple[str, list[str] | None, list[str]]]:
    """Return the operators that a cut gives to one stage, from the last to the first, with the names of their operands.

    Those that follow from variables and constants alone come with the names of their results.
    """
    follow, replicated = following(graph), taken_by_optimizer(graph)
    return [
        (
            op.name,
            [tensor.name for tensor in op.outputs] if op.name in follow else None,
            [tensor.name for _, tensor in op.operands],
        )
        for op in reversed(tuple(graph.operators.values()))
        if op.name not in replicated and op.type not in SOURCES
    ]


@lru_cache(maxsize=4)
def taken_by_optimizer(graph: Graph) -> frozenset[str]:
    """Return the names of the operators that compute what the optimizer takes, and of the counter of steps."""
    (step,) = graph.train_steps.values()
    names = graph.ancestors(step.optimizer.tensors)
    for name in names:
        if graph.operators[name].is_trainable:
            raise InputError(f"the optimizer takes what is made of '{name}', which is trained; use stages=1")
    return frozenset(names | ({step.step_counter} if step.step_counter else set()))


@lru_cache(maxsize=4)
def constant(graph: Graph) -> frozenset[str]:
    """Return the names of the operators that follow from constants alone."""
    names: set[str] = set()
    random_types = {*FROM_KEY, *FROM_SEED}
    for op in graph.operators.values():
        follows = op.operands and all(graph.producers[tensor.name].name in names for _, tensor in op.operands)
        if op.type == CONSTANT or (follows and op.updates is None and op.type not in random_types):
            names.add(op.name)
    return frozenset(names)
