"""Pass tensors through unchanged, with a gradient that a Python function emits.

``tf.custom_gradient`` would add an entry to a global registry with each use. Here one gradient is registered. The operator
holds a number, by which the function is found in a collection of the operator's graph, and the function lives as long as
that graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

GRADIENT_TYPE = "TensorOptOwnGradient"
_FUNCTIONS, _NUMBER = "_tensoropt_own_gradients", "_tensoropt_own_gradient"

Gradients = Sequence[tf.Tensor | None]
GradientFunction = Callable[[Sequence[tf.Tensor], Gradients], Gradients]


def with_own_gradient(tensors: Sequence[tf.Tensor], gradient: GradientFunction, name: str) -> list[tf.Tensor]:
    """Return the same tensors, whose gradients ``gradient`` emits.

    Args:
        gradient: takes the tensors as the backward pass reads them, and the gradients of the results, None for a result that
            can't have one; returns the gradients of ``tensors``, or None for some.
    """
    graph = tf.compat.v1.get_default_graph()
    functions = graph.get_collection_ref(_FUNCTIONS)
    with graph.gradient_override_map({"IdentityN": GRADIENT_TYPE}):
        results = tf.raw_ops.IdentityN(input=list(tensors), name=name)
    results[0].op._set_attr(_NUMBER, tf.compat.v1.AttrValue(i=len(functions)))
    functions.append(gradient)
    return list(results)


@tf.RegisterGradient(GRADIENT_TYPE)
def _own_gradient(op: tf.Operation, *gradients: Any) -> Gradients:
    """Emit the gradients by the function whose number the operator has."""
    dense = [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]
    return op.graph.get_collection_ref(_FUNCTIONS)[op.get_attr(_NUMBER)](op.inputs, dense)
