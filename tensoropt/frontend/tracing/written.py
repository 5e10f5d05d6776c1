"""Find the variables that a traced function writes, and the optimizers that it applies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from ..gradient_placeholders import UPDATE_ATTRIBUTE, update_of
from ..stateful import Treatment, treatment_of
from .called import function_graph, is_call_by_name
from .conditionals import CONDITIONALS, branch_graphs
from .loops import loop_functions

CALLS = ("PartitionedCall", "StatefulPartitionedCall")
LOOPS = ("While", "StatelessWhile")


@dataclass(frozen=True)
class Written:
    """The writes of a function.

    Attributes:
        variables: the positions of the inputs that are handles of variables that it writes.
        updates: by the number of an application of an optimizer, the positions of the variables that it updates, in order.
    """

    variables: set[int] = field(default_factory=set)
    updates: dict[int, list[int]] = field(default_factory=dict)


def written_in(graph: Any) -> Written:
    """Return what a traced function writes."""
    place = {tensor.name: i for i, tensor in enumerate(graph.inputs)}
    writes = Written()
    for op in graph.get_operations():
        if UPDATE_ATTRIBUTE in op.node_def.attr:
            writes.updates.setdefault(update_of(op), []).append(place[handle_behind(op.inputs[0]).name])
        elif treatment_of(op.type) is Treatment.WRITE:
            writes.variables.add(place[handle_behind(op.inputs[0]).name])
        for inner, offset in functions_of(op):
            inner_writes = written_in(inner)
            positions = {k: place.get(handle_behind(tensor).name, -1) for k, tensor in enumerate(op.inputs[offset:])}
            writes.variables.update(positions[k] for k in inner_writes.variables)
            writes.updates.update({number: [positions[k] for k in at] for number, at in inner_writes.updates.items()})
    return writes


def functions_of(op: tf.Operation) -> Iterator[tuple[Any, int]]:
    """Yield the graphs of the functions that an operator calls, each with the position of its first argument."""
    if op.type in CALLS:
        yield function_graph(op, op.get_attr("f").name), 0
    elif op.type in CONDITIONALS:
        yield from ((graph, 1) for graph in branch_graphs(op))
    elif op.type in LOOPS:
        yield from ((graph, 0) for graph in loop_functions(op))
    elif is_call_by_name(op):
        yield function_graph(op, op.type), 0


def handle_behind(tensor: tf.Tensor) -> tf.Tensor:
    """Return the handle of a variable behind identities; other tensors as they are."""
    while tensor.dtype == tf.resource and tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def behind_controls(tensor: tf.Tensor) -> tf.Tensor:
    """Return the tensor behind identities that wait for side effects.

    A function's results are such identities; its side effects are kept apart.
    """
    while tensor.op.type == "Identity" and tensor.op.control_inputs:
        tensor = tensor.op.inputs[0]
    return tensor
