"""Tensors that pass through unchanged and have a gradient that a Python function emits.

``tf.custom_gradient`` would add to a global registry with each use. Here one gradient is registered; the function is found
by a number among those that the operator's graph keeps, and lives as long as that graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

GRADIENT_TYPE = "TensorOptOwnGradient"
_FUNCTIONS, _NUMBER = "_tensoropt_own_gradients", "_tensoropt_own_gradient"

Gradients = Sequence[tf.Tensor | None]
GradientFunction = Callable[[Gradients], Gradients]


def with_own_gradient(tensors: Sequence[tf.Tensor], gradient: GradientFunction, name: str) -> list[tf.Tensor]:
    """The same tensors; ``gradient`` emits the gradients of ``tensors`` from those of the results.

    It is given None where a result can't have a gradient, and may return None.
    """
    graph = tf.compat.v1.get_default_graph()
    functions = graph.get_collection_ref(_FUNCTIONS)
    with graph.gradient_override_map({"IdentityN": GRADIENT_TYPE}):
        passed = tf.raw_ops.IdentityN(input=list(tensors), name=name)
    passed[0].op._set_attr(_NUMBER, tf.compat.v1.AttrValue(i=len(functions)))
    functions.append(gradient)
    return list(passed)


@tf.RegisterGradient(GRADIENT_TYPE)
def _own_gradient(op: tf.Operation, *gradients: Any) -> Gradients:
    dense = [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]
    return op.graph.get_collection_ref(_FUNCTIONS)[op.get_attr(_NUMBER)](dense)
