"""Emit the gradient of one of the model's operators: of its TensorFlow operators one by one, last to first.

A TensorFlow operator's gradient is what the function emits that TensorFlow registers for its type. Where the backward pass
reads something else than the forward pass (a regathered copy, a rematerialized tensor) that function is given a *stand-in*:
an operator whose operands and results are what is to be read. Some functions read the operator itself, whatever they are
given: what they emit is made to read the other tensors at once, before anything else is emitted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import tensorflow as tf
from tensorflow.python.eager import backprop_util
from tensorflow.python.framework import ops
from tensorflow.python.ops import default_gradient

from ..common.reach import reached
from .operators import Values

Key = tuple[str, int]
Gradient: TypeAlias = "tf.Tensor | tf.IndexedSlices"
BACKWARD, REMATERIALIZED = "gradients", "rematerialized"
"""The name scope of a backward pass, and in it that of operators that are rematerialized."""
VIEWS = frozenset("Identity IdentityN Reshape ExpandDims Squeeze".split())
_SHAPES = frozenset("Shape ShapeN Size Rank".split())
# Gradient functions of these take None for a result without a gradient; zeros would make them emit more.
_TAKES_NONE = frozenset(
    "FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3 IdentityN SoftmaxCrossEntropyWithLogits "
    "SparseSoftmaxCrossEntropyWithLogits".split()
)
# Gradient functions of these read the forward operator itself, to which they add results.
_READS_ITSELF = frozenset(
    "Case If PartitionedCall StatefulPartitionedCall StatelessCase StatelessIf StatelessWhile While".split()
)


def sources_of(op: tf.Operation) -> Iterator[tf.Operation]:
    """Return the operators that an operator waits for, by data or by control dependency."""
    yield from (tensor.op for tensor in op.inputs)
    yield from op.control_inputs


def key_of(tensor: tf.Tensor) -> Key:
    """Return a tensor's operator and index among the operator's results."""
    return tensor.op.name, tensor.value_index


@dataclass(frozen=True, slots=True)
class Created:
    """TensorFlow operators that were created one after the other, by their numbers in the graph: start <= number < end."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class Inner:
    """A resharding inside of an operator.

    Attributes:
        values: the local values before it.
        results: the local values after it.
        back: emits the gradients of ``values``, given those of ``results``; None where no gradient comes back.
    """

    values: Values
    results: Values
    back: Callable[[Values], Values] | None


@dataclass(eq=False)
class Emitted:
    """One of the model's operators, as emitted.

    Attributes:
        operands: the local values of its operands, by position.
        results: the local values of each result.
        parts: what it was made of, in order.
        cheap: numbers of TensorFlow operators that are computed again in the backward pass where what they read isn't saved.
    """

    operands: Mapping[int, Values]
    results: Sequence[Values] = ()
    parts: list[Created | Inner] = field(default_factory=list)
    cheap: list[Created] = field(default_factory=list)


class StandIn:
    """An operator with other operands and results; all else is the operator's own."""

    def __init__(
        self, op: tf.Operation, inputs: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor], skip: Sequence[int]
    ) -> None:
        """Take the operands and results, and the positions of operands whose gradients nobody asks for."""
        self._op, self.inputs, self.outputs = op, tuple(inputs), list(outputs)
        if skip:
            self.skip_input_indices = tuple(skip)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._op, name)


class Pullback:
    """The gradient of one of the model's operators, as it is emitted.

    Attributes:
        forward_needs: operators that were emitted with the gradient and that the forward pass needs: the gradient of a loop
            gives the loop lists to fill.
    """

    def __init__(self, emitted: Emitted, operators: Sequence[tf.Operation], replacements: Mapping[Key, tf.Tensor]) -> None:
        """Take the graph's operators in the order of their creation, and what is read instead of which tensor."""
        self.emitted, self._again = emitted, dict(replacements)
        self._parts = [operators[part.start : part.end] if isinstance(part, Created) else part for part in emitted.parts]
        self._own = {op.name for part in self._parts if not isinstance(part, Inner) for op in part}
        self._cheap = {op.name for span in emitted.cheap for op in operators[span.start : span.end]}
        self._functions: dict[str, Any] = {}
        self._gradients: dict[Key, Gradient] = {}
        self.forward_needs: list[tf.Operation] = []

    def run(self, result_gradients: Iterable[tuple[int, Values]], positions: Sequence[int]) -> list[Values | None]:
        """Emit the gradient.

        Args:
            result_gradients: those of results, each with the result's index.
            positions: those of the operands whose gradients are asked for.

        Returns:
            By operand, the gradients of its local values; None where there are none, and where the operand is the same
            tensor as one before, which has the gradient of both.
        """
        for index, gradients in result_gradients:
            for result, gradient in zip(self.emitted.results[index], gradients, strict=True):
                self._add(result, gradient)
        operands = [self.emitted.operands[position] for position in positions]
        keys = self._reached(value for values in operands for value in values)
        for part in reversed(self._parts):
            if isinstance(part, Inner):
                resharded = self._take(part.results)
                if resharded is not None and part.back is not None and any(key_of(value) in keys for value in part.values):
                    for value, gradient in zip(part.values, part.back(resharded), strict=True):
                        self._add(value, gradient)
                continue
            for op in reversed(part):
                self._through(op, keys)
        return [self._take(values) for values in operands]

    def _take(self, values: Values) -> Values | None:
        """Return the gradients of local values, and forget them; None if none has come."""
        gradients = [self._gradients.pop(key_of(value), None) for value in values]
        if all(gradient is None for gradient in gradients):
            return None
        return [
            tf.zeros_like(value) if gradient is None else tf.convert_to_tensor(gradient)
            for value, gradient in zip(values, gradients, strict=True)
        ]

    def _reached(self, starts: Iterable[tf.Tensor]) -> set[Key]:
        """Return the tensors whose gradients lead to a start."""
        keys = {key_of(tensor) for tensor in starts}
        for part in self._parts:
            if isinstance(part, Inner):
                if part.back is not None and any(key_of(value) in keys for value in part.values):
                    keys.update(map(key_of, part.results))
                continue
            for op in part:
                if any(key_of(tensor) in keys for tensor in op.inputs) and self._function(op) is not None:
                    keys.update(key_of(tensor) for tensor in op.outputs if backprop_util.IsTrainable(tensor))
        return keys

    def _function(self, op: tf.Operation) -> Any:
        """Return the function that emits an operator's gradient; None if the operator has none."""
        if op.name not in self._functions:
            try:
                self._functions[op.name] = ops.get_gradient_function(op)
            except LookupError:
                self._functions[op.name] = _of_function_call
        return self._functions[op.name]

    def _add(self, tensor: tf.Tensor, gradient: Gradient) -> None:
        earlier = self._gradients.get(key_of(tensor))
        if earlier is not None:
            gradient = tf.add_n([tf.convert_to_tensor(earlier), tf.convert_to_tensor(gradient)])
        self._gradients[key_of(tensor)] = gradient

    def _through(self, op: tf.Operation, keys: Collection[Key]) -> None:
        """Emit the gradients of one TensorFlow operator's operands, if one of its results has a gradient."""
        gradients = [self._gradients.get(key_of(tensor)) for tensor in op.outputs]
        positions = [i for i, tensor in enumerate(op.inputs) if key_of(tensor) in keys]
        function = self._function(op)
        if not positions or function is None or all(gradient is None for gradient in gradients):
            return
        if op.type not in _TAKES_NONE:
            gradients = [
                default_gradient.zeros_like(tensor)
                if gradient is None and backprop_util.IsTrainable(tensor) and default_gradient.supports_default_grad(tensor)
                else gradient
                for tensor, gradient in zip(op.outputs, gradients, strict=True)
            ]
        with tf.name_scope(f"{op.name.rpartition(f'{REMATERIALIZED}/')[2]}_grad"):
            results = self._call(function, op, gradients, positions)
        results = list(results) if isinstance(results, (list, tuple)) else [results]
        for i, gradient in zip(range(len(op.inputs)), results, strict=False):
            if gradient is None or i not in positions:
                continue
            if isinstance(gradient, tf.Tensor) and op.inputs[i].dtype != tf.resource:
                gradient.set_shape(op.inputs[i].shape)
            self._add(op.inputs[i], gradient)

    def _call(self, function: Any, op: tf.Operation, gradients: Sequence[Gradient | None], places: Collection[int]) -> Any:
        """Call a gradient function on an operator, or on a stand-in that reads what the backward pass is to read."""
        if op.type in _READS_ITSELF or function is _of_function_call:
            return self._call_on_itself(function, op, gradients)
        inputs, outputs = [self._read(tensor) for tensor in op.inputs], [self._read(tensor) for tensor in op.outputs]
        skip = [i for i in range(len(inputs)) if i not in places]
        is_itself = all(a is b for a, b in zip((*inputs, *outputs), (*op.inputs, *op.outputs), strict=True))
        return function(op if is_itself and not skip else StandIn(op, inputs, outputs, skip), *gradients)

    def _call_on_itself(self, function: Any, op: tf.Operation, gradients: Sequence[Gradient | None]) -> Any:
        """Call a gradient function that reads the operator itself; what it emits then reads what it is to read."""
        n_inputs, start = len(op.inputs), op.graph.version
        results = function(op, *gradients)
        emitted = op.graph.get_operations()[start:]
        names = {new_op.name for new_op in emitted}
        starts = [tensor.op for tensor in list(op.inputs)[n_inputs:] if tensor.op.name in names]
        ahead = reached(starts, lambda op: [source for source in sources_of(op) if source.name in names])
        self.forward_needs += ahead
        for new_op in emitted if self._again else ():
            if new_op not in ahead and new_op.type not in _SHAPES:
                for i, tensor in enumerate(new_op.inputs):
                    read = self._read(tensor)
                    if read is not tensor:
                        new_op._update_input(i, read)
        return results

    def _read(self, tensor: tf.Tensor) -> tf.Tensor:
        """Return what the backward pass reads for a tensor: it, what was made again, or what is computed of that."""
        key = key_of(tensor)
        if not self._again or key in self._again:
            return self._again.get(key, tensor)
        op = tensor.op
        if op.name in self._own and (op.type in VIEWS or op.name in self._cheap):
            inputs = [self._read(operand) for operand in op.inputs]
            if any(new is not old for new, old in zip(inputs, op.inputs, strict=True)):
                dtypes = [output.dtype for output in op.outputs]
                copy = op.graph.create_op(op.type, inputs, dtypes, attrs=dict(op.node_def.attr), name=op.type)
                for output, first in zip(copy.outputs, op.outputs, strict=True):
                    output.set_shape(first.shape)
                    self._again[key_of(first)] = output
                return copy.outputs[tensor.value_index]
        return tensor


def _of_function_call(op: tf.Operation, *gradients: Gradient | None) -> Sequence[Gradient | None]:
    """Return the gradients of the operands of a function's call, which has no gradient function of its own.

    Raises:
        LookupError: the operator isn't a call, and TensorFlow has no gradient for it.
    """
    inputs, ends = list(op.inputs), [(end, g) for end, g in zip(op.outputs, gradients, strict=True) if g is not None]
    return tf.gradients([end for end, _ in ends], inputs, [g for _, g in ends], stop_gradients=inputs)
