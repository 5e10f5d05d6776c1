"""The backward pass of a model from TensorFlow's gradients of the whole model, derived in one go."""

from __future__ import annotations

import math
import warnings
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from tensoropt.ir.gradient_info import Backward
from tensoropt.ir.graph import CONSTANT, SOURCES, Graph, Operator, Tensor
from tensoropt.lowering.gradient_analysis import _MOST_WRITTEN, _emitted, _ends, _is_read, _live, _of_pass, _union

_TRACE, _NUMBER = "TensorOptTrace", "_tensoropt_operand"


def traced(graph: Graph) -> Backward:
    """Return what :func:`.analyse` returns."""
    passes = graph.backward_passes
    return _union(graph, {each.name: _of_pass(graph, each, _Trace(graph).derive(*_ends(graph, each))) for each in passes})


@dataclass
class _Trace:
    """The model emitted with a hook at every operand, which notes whether a gradient comes back to that operand.

    Attributes:
        values: by tensor name, the emitted tensor.
        hooks: for each operand, its (operator, input position) and the tensor that the operator reads.
        reached: the (operator, input position) of the operands to which a gradient has come.
    """

    graph: Graph
    values: dict[str, tf.Tensor] = field(default_factory=dict)
    hooks: list[tuple[tuple[str, int], tf.Tensor]] = field(default_factory=list)
    reached: set[tuple[str, int]] = field(default_factory=set)

    def derive(self, needed: Container[str], results: Sequence[Tensor], variables: Sequence[Tensor]) -> Backward | None:
        """Return what the gradients of ``results`` with respect to ``variables`` do, or None where there are none."""
        with tf.Graph().as_default() as traced:
            for op in self.graph.operators.values():
                if op.name in needed:
                    self._emit(op)
            n_forward = len(traced.get_operations())
            ends, starts = ([self.values[tensor.name] for tensor in tensors] for tensors in (results, variables))
            _tracing.append(self)
            try:
                with warnings.catch_warnings():
                    # Tied embeddings have sparse gradients that are made dense; nothing is allocated here.
                    warnings.filterwarnings("ignore", "Converting sparse IndexedSlices")
                    gradients = [gradient for gradient in tf.gradients(ends, starts) if gradient is not None]
            finally:
                _tracing.pop()
            if not gradients:
                return None
            readers = _live(gradients) - {op.name for op in traced.get_operations()[:n_forward]}
        return Backward(
            {"": frozenset(self.reached)},
            frozenset(key for key, tensor in self.hooks if _is_read(tensor, readers)),
            frozenset(name for name, tensor in self.values.items() if _is_read(tensor, readers)),
        )

    def _emit(self, op: Operator) -> None:
        """Emit an operator on hooked operands; placeholders stand for sources, large constants and updated variables."""
        if op.updates is not None:
            # No gradient passes through an assignment; the value that is read after one is a given.
            for tensor in op.outputs:
                self.values[tensor.name] = tf.compat.v1.placeholder(tf.as_dtype(tensor.dtype), tensor.shape)
            return
        if op.type in SOURCES and (op.type != CONSTANT or math.prod(op.result.shape) > _MOST_WRITTEN):
            kind = tf.as_dtype(op.result.dtype)
            self.values[op.result.name] = tf.compat.v1.placeholder(kind, op.result.shape)
            return
        operands = [self._hook(op, position, tensor) for position, tensor in op.operands]
        self.values.update(zip((tensor.name for tensor in op.outputs), _emitted(op, operands), strict=True))

    def _hook(self, op: Operator, position: int, tensor: Tensor) -> tf.Tensor:
        """Return an operand's value behind a hook: an operator whose gradient notes that a gradient came to the operand."""
        with tf.compat.v1.get_default_graph().gradient_override_map({"IdentityN": _TRACE}):
            (hooked,) = tf.identity_n([self.values[tensor.name]])
        hooked.op._set_attr(_NUMBER, tf.compat.v1.AttrValue(i=len(self.hooks)))
        self.hooks.append(((op.name, position), hooked))
        return hooked


_tracing: list[_Trace] = []


@tf.RegisterGradient(_TRACE)
def _trace_gradient(op: tf.Operation, gradient: tf.Tensor) -> tf.Tensor:
    """Note that a gradient came to an operand, and pass it on."""
    trace = _tracing[-1]
    trace.reached.add(trace.hooks[op.get_attr(_NUMBER)][0])
    return gradient
