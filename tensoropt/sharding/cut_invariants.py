"""Tell of a graph what is the same wherever it is cut into stages, once, as many cuts are tried."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from ..common.errors import InputError
from ..ir.graph import CONSTANT, SOURCES, Graph
from ..rules.random import RANDOM


@lru_cache(maxsize=4)
def following(graph: Graph) -> frozenset[str]:
    """Return the names of the operators that follow from variables and constants alone."""
    operators = (op for op in graph.operators.values() if op.updates is None and op.outputs)
    return frozenset(op.name for op in operators if all(tensor.name in graph.made_of_variables for tensor in op.outputs))


@lru_cache(maxsize=4)
def places(graph: Graph) -> Mapping[str, int]:
    """Return the operators' places in program order."""
    return {name: place for place, name in enumerate(graph.operators)}


@lru_cache(maxsize=4)
def first_uses(graph: Graph) -> Mapping[str, int]:
    """Return for each tensor the place of the first operator that needs it in its stage.

    What follows from variables and constants alone is computed where these are: it needs its operands where its results are
    needed, at the end if they aren't. Sources and what the optimizer takes need nothing here.
    """
    place_of, follow, replicated = places(graph), following(graph), taken_by_optimizer(graph)
    first: dict[str, int] = {}
    for op in reversed(tuple(graph.operators.values())):
        if op.name in replicated or op.type in SOURCES:
            continue
        place = place_of[op.name]
        if op.name in follow:
            place = min((first[tensor.name] for tensor in op.outputs if tensor.name in first), default=len(place_of))
        for _, tensor in op.operands:
            first[tensor.name] = min(first.get(tensor.name, place), place)
    return first


@lru_cache(maxsize=4)
def producers(graph: Graph) -> Mapping[str, dict[str, None]]:
    """Return for each operator the names of those that compute its operands."""
    return {
        op.name: dict.fromkeys(graph.producers[tensor.name].name for _, tensor in op.operands)
        for op in graph.operators.values()
    }


@lru_cache(maxsize=4)
def taken_by_optimizer(graph: Graph) -> frozenset[str]:
    """Return the names of the operators that compute what optimizers take, and of the counters of steps."""
    steps = graph.train_steps.values()
    names = graph.ancestors([tensor for step in steps for tensor in step.optimizer.tensors])
    for name in names:
        if graph.operators[name].is_trainable:
            raise InputError(f"the optimizer takes what is made of '{name}', which is trained; use stages=1")
    return frozenset(names.union(step.step_counter for step in steps if step.step_counter))


@lru_cache(maxsize=4)
def constant(graph: Graph) -> frozenset[str]:
    """Return the names of the operators that follow from constants alone."""
    names: set[str] = set()
    for op in graph.operators.values():
        follows = op.operands and all(graph.producers[tensor.name].name in names for _, tensor in op.operands)
        if op.type == CONSTANT or (follows and op.updates is None and op.type not in RANDOM):
            names.add(op.name)
    return frozenset(names)
