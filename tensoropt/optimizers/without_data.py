"""Trace the part of a step that needs no batch: Keras runs it once more at the end of data of unknown size.

Keras finds that such data has ended where a step asks for a batch. By then TensorFlow has run all of the step that needs
none: the optimizer's count of updates, weight decay, the states of random generators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

_READS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"})


def without_data(step: Callable[..., Any], data: Sequence[Any]) -> Callable[[], Any] | None:
    """Return a function that does what a step does without its data; None if that is nothing.

    Args:
        data: for each argument of the step a structure of specs, with None for the number of samples.
    """
    function = tf.function(step, autograph=False).get_concrete_function(*data)
    graph, captured = function.graph, {inner.op.name: outer for outer, inner in function.graph.captures}
    dependents: set[str] = set()
    writes = []
    for op in graph.get_operations():  # in an order in which they may run
        before = (*(tensor.op for tensor in op.inputs), *op.control_inputs)
        is_data = op.type == "Placeholder" and op.name not in captured
        if is_data or any(operand.name in dependents for operand in before):
            dependents.add(op.name)
        elif op.type not in (*_READS, "Placeholder") and any(tensor.dtype == tf.resource for tensor in op.inputs):
            writes.append(op.name)
    if not writes:
        return None
    subgraph = tf.compat.v1.graph_util.extract_sub_graph(graph.as_graph_def(), writes)

    def again() -> None:
        names = [node.name for node in subgraph.node if node.name in captured]
        inputs = {name: tf.compat.v1.get_default_graph().capture(captured[name]) for name in names}
        tf.graph_util.import_graph_def(subgraph, input_map=inputs, name="")

    return tf.function(again, autograph=False).get_concrete_function()
