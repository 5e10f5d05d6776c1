"""Find the functions that operators call: by an attribute, or, in graphs of TensorFlow 1, by the operator's type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util_v2


def is_call_by_name(op: tf.Operation) -> bool:
    """Return whether an operator's type is the name of a function, as ``function.Defun`` writes calls."""
    return any(graph._is_function(op.type) for graph in _enclosing(op.graph))


def function_graph(op: tf.Operation, name: str) -> Any:
    for graph in _enclosing(op.graph):
        function = graph._get_function(name)
        if function is not None and hasattr(function, "graph"):
            return function.graph
    # A function of TensorFlow 1 is known by its definition alone.
    return control_flow_util_v2.get_func_graph(op, [tensor.shape for tensor in op.inputs], name)


def _enclosing(graph: Any) -> Iterator[Any]:
    while graph is not None:
        yield graph
        graph = getattr(graph, "outer_graph", None)
