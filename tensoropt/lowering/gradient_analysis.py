"""Find out what the backward pass of a model does, by asking TensorFlow for the gradient of each operator.

TensorFlow derives the gradient of each operator once, for the operands that need one. From the operators that it emits
follows which operands get a gradient and which tensors the gradient reads, hence what is saved from the forward pass (*mt*
of Equation (1) in the TensorOpt paper). Operators that are alike are asked for once. Following these answers from the loss
back gives the whole backward pass; nothing is executed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from ..common.errors import InputError, describe
from ..common.gradient_types import carries_gradient
from ..common.reach import reached
from ..ir.body import BODY, LOOP, Body
from ..ir.gradient_info import NO_BACKWARD, Backward
from ..ir.graph import ARGUMENTS, CONSTANT, SOURCES, Differentiated, Gradients, Graph, Operator, Tensor
from ..reschedule.mesh import Mesh
from ..rules.registry import rule_of
from ..rules.rule import Config, interface_of
from .operators import Job, emit

# Operators with which gradient functions read a tensor's shape only; shapes are known.
_SHAPE_ONLY = frozenset("Shape ShapeN Size Rank ZerosLike OnesLike BroadcastGradientArgs".split())
# The largest constant, in elements, that is written into the graph that TensorFlow is asked with. Gradient functions may
# look at small constants (an exponent); writing large ones into a graph takes long.
_MOST_WRITTEN = 1024


def analyse(graph: Graph) -> Backward:
    """Return what all backward passes read, and where gradients go.

    Raises:
        InputError: a loss depends on none of the variables that its step trains, or the tensors that get a gradient aren't
            those that get one in the recorded graph according to TensorFlow.
    """
    passes = graph.backward_passes
    backward = _union(graph, {each.name: _of_pass(graph, each, _followed(graph, *_ends(graph, each))) for each in passes})
    if graph.differentiated is not None:
        _check_differentiated(graph, backward, graph.differentiated)
    return backward


def _check_differentiated(graph: Graph, backward: Backward, expected: Differentiated) -> None:
    """Raise InputError if gradients take other ways here than in TensorFlow: the model would train to other numbers."""
    # The gradient of a variable that is updated by rows ends at the rows that its lookups find.
    row_tensors = {graph.operators[name].result.name for name in graph.lookups}
    differing = (backward.reached(graph) ^ expected.tensors) - row_tensors
    for op in reversed(list(graph.operators.values())):
        indices = {index for index, _ in op.operands if (op.name, index) in backward.gradients}
        true_indices = expected.operands.get(op.name, indices) - {index for index, t in op.operands if t.name in row_tensors}
        if indices != true_indices or any(tensor.name in differing for tensor in op.outputs):
            raise InputError(
                describe(
                    f"gradients don't pass {op.where()} as they do in TensorFlow, so that the model would train to other "
                    "numbers than on one device",
                    got=_gradients_text(indices),
                    expected=_gradients_text(true_indices),
                    advice="where no gradient is to pass, write tf.stop_gradient(...); else use other operators there, and "
                    "report this one",
                )
            )


def _gradients_text(indices: Collection[int]) -> str:
    """Return a text for error messages: which inputs get a gradient."""
    return f"gradients of inputs {', '.join(map(str, sorted(indices)))}" if indices else "no gradient of an input"


def _of_body(body: Body) -> Backward:
    """Return what the backward pass of a loop's body does, from its outputs back to its inputs."""
    inputs, outputs = (
        [tensor for tensor in tensors if carries_gradient(tensor.dtype)] for tensors in (body.inputs, body.outputs)
    )
    names = body.graph.ancestors([*inputs, *outputs])
    return _union(body.graph, {"": _followed(body.graph, names, outputs, inputs) or NO_BACKWARD})


def _ends(graph: Graph, gradients: Gradients) -> tuple[set[str], list[Tensor], list[Tensor]]:
    """Return the ancestors of a loss (operator names), the loss, and the tensors whose gradients are taken."""
    # For a variable that is updated by rows, the gradient is taken at the rows that its lookups find.
    starts = [name for variable in gradients.variables for name in graph.lookups.get(variable, (variable,))]
    variables = [graph.operators[name].result for name in starts]
    return graph.ancestors([gradients.loss], gradients.variables), [gradients.loss], variables


def _of_pass(graph: Graph, gradients: Gradients, backward: Backward | None) -> Backward:
    if backward is None:
        loss = graph.producers[gradients.loss.name].where()
        raise InputError(
            f"the loss of training step '{gradients.name}', {loss}, depends on none of the variables that it trains "
            f"({', '.join(gradients.variables)}) in a way that has a gradient; compute it of what these give, without "
            "tf.stop_gradient, integers or comparisons between"
        )
    return backward


def _union(graph: Graph, passes: Mapping[str, Backward]) -> Backward:
    """Return what all backward passes of a graph do, given each by its name, with those of its loops' bodies."""
    differentiated = {name for backward in passes.values() for name, _ in backward.gradients}
    loops = [op for op in graph.operators.values() if op.type == LOOP and op.name in differentiated]
    return Backward(
        {name: backward.gradients for name, backward in passes.items()},
        frozenset().union(*(backward.residual_operands for backward in passes.values())),
        frozenset().union(*(backward.residual_results for backward in passes.values())),
        {op.name: _of_body(op.attrs[BODY]) for op in loops},
    )


# Operator by operator


@dataclass(frozen=True, slots=True)
class _Answer:
    """The behaviour of one operator's gradient, given which results have a gradient and which operands need one.

    Attributes:
        gives: the indices, among the operands, of those that get a gradient.
        reads: the indices of the operands that the gradient reads.
        reads_results: the indices of the results that the gradient reads.
    """

    gives: frozenset[int]
    reads: frozenset[int]
    reads_results: frozenset[int]


_ANSWERS: dict[tuple[object, ...], _Answer] = {}
"""The answers of all graphs of this process, since programs of one model have operators that are alike."""
_MOST_ANSWERS = 4096


@dataclass
class _Asking:
    """The gradients of single operators, for which TensorFlow is asked once for all operators that are alike."""

    graph: Graph
    _of_bodies: dict[tuple[object, ...], _Answer] = field(default_factory=dict)

    def answer(self, op: Operator, results: frozenset[int], indices: frozenset[int]) -> _Answer:
        """Return what an operator's gradient does when gradients come to ``results`` and the operands ``indices`` need one.

        Args:
            results: indices of the operator's results.
            indices: indices among the operator's operands.
        """
        if not results or not indices:
            return _Answer(frozenset(), frozenset(), frozenset())
        key = (*self._signature(op), results, indices)
        # A body's identity tells it from others only as long as its graph is there.
        has_body = any(name.startswith("_") and name != ARGUMENTS for name in op.attrs)
        answers = self._of_bodies if has_body else _ANSWERS
        answer = answers.get(key)
        if answer is None:
            if len(answers) >= _MOST_ANSWERS:
                answers.clear()
            answer = answers[key] = self._analyse(op, results, indices)
        return answer

    def _signature(self, op: Operator) -> tuple[object, ...]:
        """Return a key that is equal for operators whose gradients do the same."""
        operands = tuple((_pattern(tensor), tensor.dtype, self._written(tensor)) for _, tensor in op.operands)
        statics = tuple((i, value.shape, value.tobytes()) for i, value in sorted(op.statics.items()))
        # A body (an attribute with an underscore) is alike to itself alone. How inputs make up arguments follows from the
        # rest.
        attrs = tuple(
            (key, id(value) if key.startswith("_") else repr(value))
            for key, value in sorted(op.attrs.items())
            if key != ARGUMENTS
        )
        return op.type, operands, statics, attrs, tuple(map(_pattern, op.outputs))

    def _written(self, tensor: Tensor) -> bytes | None:
        """Return the value of an operand that is a small constant, else None."""
        producer = self.graph.producers[tensor.name]
        is_small = producer.type == CONSTANT and math.prod(tensor.shape) <= _MOST_WRITTEN
        return producer.statics[0].tobytes() if is_small else None

    def _analyse(self, op: Operator, results: frozenset[int], indices: frozenset[int]) -> _Answer:
        """Emit the operator and its gradient in a graph of their own, and read from that what the gradient does."""
        with tf.Graph().as_default() as graph_of_gradient, warnings.catch_warnings():
            # Tied embeddings have sparse gradients that are made dense; nothing is allocated here.
            warnings.filterwarnings("ignore", "Converting sparse IndexedSlices")
            operands = [self._operand(tensor) for _, tensor in op.operands]
            outputs = _emitted(op, operands)
            forward = {emitted.name for emitted in graph_of_gradient.get_operations()}
            ends = [outputs[i] for i in sorted(results)]
            starts = [operands[index] for index in sorted(indices)]
            result_gradients = [tf.compat.v1.placeholder(end.dtype, end.shape) for end in ends]
            try:
                gradients = tf.gradients(ends, starts, result_gradients)
            except LookupError as error:
                raise InputError(
                    f"{op.where()} stands between the loss and a variable that it trains, and TensorFlow has no gradient "
                    "for it; write tf.stop_gradient(...) where none is to pass, or use other operators"
                ) from error
            readers = _live(gradients) - forward
            return _Answer(
                frozenset(index for index, gradient in zip(sorted(indices), gradients, strict=True) if gradient is not None),
                frozenset(index for index, tensor in enumerate(operands) if _is_read(tensor, readers)),
                frozenset(i for i, tensor in enumerate(outputs) if _is_read(tensor, readers)),
            )

    def _operand(self, tensor: Tensor) -> tf.Tensor:
        """Return a stand-in for an operand: the constant itself if it is small, else a placeholder."""
        producer = self.graph.producers[tensor.name]
        if self._written(tensor) is not None:
            return tf.constant(producer.statics[0], tf.as_dtype(tensor.dtype))
        return tf.compat.v1.placeholder(tf.as_dtype(tensor.dtype), tensor.shape)


def _pattern(tensor: Tensor) -> tuple[int, ...]:
    """Return as much of a shape as gradients depend on: for each dimension 0 if empty, 1 if it may be broadcast, else 2."""
    return tuple(min(extent, 2) for extent in tensor.shape)


def _followed(
    graph: Graph, names: Container[str], results: Sequence[Tensor], variables: Sequence[Tensor]
) -> Backward | None:
    """Return the backward pass from ``results`` to ``variables`` by each operator's gradient; None where none gets there."""
    asking = _Asking(graph)
    operators = [op for op in graph.operators.values() if op.name in names and op.updates is None]
    starts = {tensor.name for tensor in variables}
    reached, alive = _forward(asking, operators, starts)
    coming = {tensor.name for tensor in results if tensor.name in reached}
    gradients: set[tuple[str, int]] = set()
    residual_operands: set[tuple[str, int]] = set()
    residual_results: set[str] = set()
    for op in reversed(operators):
        indices = frozenset(i for i, tensor in enumerate(op.outputs) if tensor.name in coming)
        if op.type in SOURCES or not indices:
            continue
        positions = [position for position, _ in op.operands]
        tensors = [tensor for _, tensor in op.operands]
        answer = asking.answer(op, indices, frozenset(i for i, tensor in enumerate(tensors) if tensor.name in reached))
        gradients.update((op.name, positions[index]) for index in answer.gives)
        coming.update(tensors[index].name for index in answer.gives)
        read = asking.answer(op, indices, frozenset(i for i, tensor in enumerate(tensors) if tensor.name in alive))
        residual_operands.update((op.name, positions[index]) for index in read.reads)
        residual_results.update(op.outputs[i].name for i in read.reads_results)
    if not coming & starts:
        return None
    return Backward({"": frozenset(gradients)}, frozenset(residual_operands), frozenset(residual_results))


def _forward(asking: _Asking, operators: Iterable[Operator], starts: set[str]) -> tuple[set[str], set[str]]:
    """Return two sets of names of tensors that depend on ``starts``.

    The first has the tensors through which TensorFlow follows gradients, the second those whose gradients reach a start.
    TensorFlow derives the gradient of whatever depends on a variable; some of these gradients lead nowhere (a gradient is
    stopped), and a tensor that only they read isn't saved.
    """
    reached, alive = set(starts), set(starts)
    for op in operators:
        if op.type in SOURCES:
            continue
        indices = frozenset(i for i, (_, tensor) in enumerate(op.operands) if tensor.name in reached)
        living = frozenset(i for i, (_, tensor) in enumerate(op.operands) if tensor.name in alive)
        for i, tensor in enumerate(op.outputs):
            if indices and carries_gradient(tensor.dtype):
                reached.add(tensor.name)
                if living & asking.answer(op, frozenset({i}), living).gives:
                    alive.add(tensor.name)
    return reached, alive


def _emitted(op: Operator, operands: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return the results of an operator emitted as on one device."""
    rule, mesh = rule_of(op), Mesh.of(1)
    config = Config(mesh, ())
    job = Job(op, rule, config, interface_of(rule, config), (0,))
    return [values[0] for values in emit(job, [[operand] for operand in operands])]


def _live(gradients: Iterable[tf.Tensor | tf.IndexedSlices | None]) -> set[str]:
    """Return the names of the operators that these gradients depend on, the indices of sparse gradients included."""
    tensors = [gradient for gradient in gradients if gradient is not None]
    starts = [tensor.op for tensor in tf.nest.flatten(tensors, expand_composites=True)]
    return {op.name for op in reached(starts, lambda op: [tensor.op for tensor in op.inputs])}


def _is_read(tensor: tf.Tensor, readers: set[str]) -> bool:
    """Return whether one of the operators named ``readers`` reads the values of a tensor, not only its shape."""
    return any(op.name in readers and op.type not in _SHAPE_ONLY for op in tensor.consumers())
