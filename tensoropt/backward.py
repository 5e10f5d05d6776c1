"""What the backward pass does, asked of TensorFlow itself.

The model is emitted once more as for one device, with a hook at every operand, and TensorFlow derives its gradients. The
hooks tell to which operands a gradient comes back; the operators of the gradient tell which tensors they read, hence what
is kept from the forward pass (*mt* of Equation (1) in the TensorOpt paper). Nothing is executed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from .errors import InputError
from .ir import CONSTANT, SOURCES, Graph, Operator, Tensor, TrainStep
from .lowering.operators import Job, Values, emit
from .reschedule.mesh import Mesh
from .rules.registry import rule_of
from .rules.rule import Config, interface

# Gradient functions read these only for shapes, which are known.
_SHAPE_ONLY = frozenset("Shape ShapeN Size Rank ZerosLike OnesLike BroadcastGradientArgs".split())
# Gradient functions may look at small constants (an exponent); writing large ones into a graph takes long.
_MOST_WRITTEN = 1024
_TRACE, _NUMBER = "TensorOptTrace", "_tensoropt_operand"


@dataclass(frozen=True, slots=True)
class Backward:
    """Attributes:
    gradients: (operator, input position) of the operands to which a gradient comes back.
    kept_operands: (operator, input position) of the operands that the operator's own gradient reads.
    kept_results: names of the tensors that their own producer's gradient reads.
    """

    gradients: frozenset[tuple[str, int]]
    kept_operands: frozenset[tuple[str, int]]
    kept_results: frozenset[str]


NO_BACKWARD = Backward(frozenset(), frozenset(), frozenset())


def analyse(graph: Graph) -> Backward:
    """What the backward passes of all training steps read and where gradients go."""
    found = [_Trace(graph).run(step) for step in graph.train_steps.values()]
    return Backward(
        frozenset().union(*(b.gradients for b in found)),
        frozenset().union(*(b.kept_operands for b in found)),
        frozenset().union(*(b.kept_results for b in found)),
    )


def analyse_body(graph: Graph, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Backward:
    """The same for a graph inside of an operator, from its outputs back to its inputs."""
    found = _Trace(graph).derive(graph.ancestors([*inputs, *outputs]), outputs, inputs)
    return found or NO_BACKWARD


@dataclass
class _Trace:
    graph: Graph
    values: dict[str, tf.Tensor] = field(default_factory=dict)
    hooks: list[tuple[tuple[str, int], tf.Tensor]] = field(default_factory=list)
    reached: set[tuple[str, int]] = field(default_factory=set)

    def run(self, step: TrainStep) -> Backward:
        variables = [self.graph.operators[name].result for name in step.variables]
        found = self.derive(self.graph.ancestors([step.loss], step.variables), [step.loss], variables)
        if found is None:
            loss = self.graph.producers[step.loss.name].where()
            raise InputError(
                f"the loss of training step '{step.name}', {loss}, depends on none of the variables that it trains "
                f"({', '.join(step.variables)}) in a way that has a gradient"
            )
        return found

    def derive(self, needed: Container[str], results: Sequence[Tensor], variables: Sequence[Tensor]) -> Backward | None:
        """What the gradients of results with respect to variables do, or None where there are none."""
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
            frozenset(self.reached),
            frozenset(key for key, tensor in self.hooks if _is_read(tensor, readers)),
            frozenset(name for name, tensor in self.values.items() if _is_read(tensor, readers)),
        )

    def _emit(self, op: Operator) -> None:
        if op.updates is not None:
            # No gradient passes an assignment; what is read after one is given.
            for tensor in op.outputs:
                self.values[tensor.name] = tf.compat.v1.placeholder(tf.as_dtype(tensor.dtype), tensor.shape)
            return
        if op.type in SOURCES and (op.type != CONSTANT or math.prod(op.result.shape) > _MOST_WRITTEN):
            kind = tf.as_dtype(op.result.dtype)
            self.values[op.result.name] = tf.compat.v1.placeholder(kind, op.result.shape)
            return
        rule, mesh = rule_of(op), Mesh.of(1)
        config = Config(mesh, ())
        operands = [[self._hook(op, position, tensor)] for position, tensor in op.operands]
        job = Job(op, rule, config, interface(rule, config), (0,), _no_delivery)
        for tensor, values in zip(op.outputs, emit(job, operands), strict=True):
            self.values[tensor.name] = values[0]

    def _hook(self, op: Operator, position: int, tensor: Tensor) -> tf.Tensor:
        with tf.compat.v1.get_default_graph().gradient_override_map({"IdentityN": _TRACE}):
            (hooked,) = tf.identity_n([self.values[tensor.name]])
        hooked.op._set_attr(_NUMBER, tf.compat.v1.AttrValue(i=len(self.hooks)))
        self.hooks.append(((op.name, position), hooked))
        return hooked


_tracing: list[_Trace] = []


@tf.RegisterGradient(_TRACE)
def _trace_gradient(op: tf.Operation, gradient: tf.Tensor) -> tf.Tensor:
    trace = _tracing[-1]
    trace.reached.add(trace.hooks[op.get_attr(_NUMBER)][0])
    return gradient


def _no_delivery(k: int, values: Values) -> Values:
    raise AssertionError("on one device nothing is delivered inside of an operator")


def _live(tensors: Iterable[tf.Tensor]) -> set[str]:
    """The operators that these tensors need."""
    pending = [tensor.op for tensor in tensors]
    live: set[str] = set()
    while pending:
        op = pending.pop()
        if op.name not in live:
            live.add(op.name)
            pending += [tensor.op for tensor in op.inputs]
    return live


def _is_read(tensor: tf.Tensor, readers: set[str]) -> bool:
    return any(op.name in readers and op.type not in _SHAPE_ONLY for op in tensor.consumers())
