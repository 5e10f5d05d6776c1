"""Gradients in other operators than TensorFlow's own: fewer, for those that are most frequent in deep models.

For an operator that broadcasts, TensorFlow emits the gradients of both operands, even where one is a constant, and reshapes
sums that could have kept their dimensions. For a mean, it divides after the gradient has been broadcast. The gradients
emitted here have the same bits: the same products, sums over the same dimensions, quotients of the same numbers.

The gradient of a bias that is added to images is emitted such that TensorFlow doesn't merge it with that of the
convolution's filter: see :func:`_of_bias_add`. For a filter of one pixel it is emitted such that oneDNN doesn't crash: see
:func:`_of_convolution`.

Complex numbers, and shapes that don't tell which dimensions are broadcast, are left to TensorFlow's gradient functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops

from ..ir.graph import Operator

Gradients = list[tf.Tensor | None]
Pulled = dict[int, tf.Tensor]
Pull = Callable[[tf.Tensor, tf.Tensor, tf.Tensor, Collection[int]], Pulled]
MEAN, BIAS_ADD = "Mean", "BiasAdd"
CONVOLUTION, DEPTHWISE, TRANSPOSED = "Conv2D", "DepthwiseConv2dNative", "BackpropInput"
_FEW_CHANNELS = 16


def _each(gradient_of: Callable[[int, tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]) -> Pull:
    """Return what pulls a gradient back to each asked operand by itself, given the operand, x, y and the gradient."""
    return lambda x, y, gradient, positions: {position: gradient_of(position, x, y, gradient) for position in positions}


def _of_squared_difference(x: tf.Tensor, y: tf.Tensor, gradient: tf.Tensor, positions: Collection[int]) -> Pulled:
    """Return the gradients of (x - y)^2 as if nothing were broadcast, for the asked operands (0: x, 1: y)."""
    # Wait for the gradient: else the difference could be computed in the forward pass, and stay in memory from then on.
    with tf.control_dependencies([gradient]):
        first = 2.0 * gradient * (x - y)
    return {position: -first if position else first for position in positions}


# The gradients of operands (0: x, 1: y) as if nothing were broadcast, by operator type.
_BROADCASTING: dict[str, Pull] = {
    "Add": _each(lambda i, x, y, gradient: gradient),
    "AddV2": _each(lambda i, x, y, gradient: gradient),
    "Mul": _each(lambda i, x, y, gradient: x * gradient if i else gradient * y),
    "RealDiv": _each(lambda i, x, y, gradient: gradient * (-x / y / y) if i else gradient / y),
    "SquaredDifference": _of_squared_difference,
    "Sub": _each(lambda i, x, y, gradient: -gradient if i else gradient),
}


def lean_gradient(op: Operator, positions: Collection[int]) -> AbstractContextManager[Any]:
    """Return a context in which an operator of this type that is emitted gets the gradient of this module, if it has one.

    Args:
        positions: positions of the operands to which a gradient comes back; no other gradient is emitted.
    """
    name = _name(op.type, positions)
    if name not in _REGISTERED or tf.as_dtype(op.result.dtype).is_complex:
        return nullcontext()
    names = {op.type: name} | ({DEPTHWISE: name} if op.type == CONVOLUTION else {})  # one may be emitted as the other
    context: AbstractContextManager[Any] = tf.compat.v1.get_default_graph().gradient_override_map(names)
    return context


def _name(op_type: str, positions: Collection[int]) -> str:
    """Return the name under which the gradient of an operator type, for these operands, is registered."""
    return f"TensorOptLean{op_type}" + "".join(map(str, sorted(positions)))


def _by_tensorflow(op: tf.Operation, gradient: tf.Tensor) -> Gradients:
    """Return the gradients that TensorFlow's own gradient function emits."""
    return list(ops.gradient_registry.lookup(op.type)(op, gradient))


def _broadcasting(positions: tuple[int, ...]) -> Callable[[tf.Operation, Any], Gradients]:
    """Return a gradient function for an operator of two operands that broadcasts, which emits the asked gradients only."""

    def emit(op: tf.Operation, gradient: Any) -> Gradients:
        """Emit the asked gradients of operands, each summed over the dimensions that the operand was broadcast to."""
        x, y = op.inputs
        dims = _broadcast_dims(x.shape, y.shape)
        if dims is None:
            return _by_tensorflow(op, gradient)
        gradients: Gradients = [None, None]
        for position, pulled in _BROADCASTING[op.type](x, y, tf.convert_to_tensor(gradient), positions).items():
            gradients[position] = _summed(pulled, op.inputs[position], dims[position])
        return gradients

    return emit


def _broadcast_dims(x: tf.TensorShape, y: tf.TensorShape) -> tuple[list[int], list[int]] | None:
    """Return, for each operand, the dimensions of the result that it is broadcast to; None where shapes don't tell."""
    if x.rank is None or y.rank is None:
        return None
    rank = max(x.rank, y.rank)
    extents = [[1] * (rank - shape.rank) + shape.as_list() for shape in (x, y)]
    x_dims, y_dims = set(range(rank - x.rank)), set(range(rank - y.rank))
    for dim, (a, b) in enumerate(zip(*extents, strict=True)):
        if a == 1 and b != 1:
            x_dims.add(dim)
        elif b == 1 and a != 1:
            y_dims.add(dim)
        elif (a is None) != (b is None):
            return None
        # Both extents may be unknown because they differ between ranks: then they are of one dimension, which both operands
        # have split alike.
    return sorted(x_dims), sorted(y_dims)


def _summed(gradient: tf.Tensor, operand: tf.Tensor, dims: list[int]) -> tf.Tensor:
    """Return a gradient summed over ``dims``, the dimensions that an operand was broadcast to, in the operand's shape."""
    if not dims:
        return gradient
    n_missing = gradient.shape.rank - operand.shape.rank
    if dims[-1] < n_missing:
        return tf.reduce_sum(gradient, dims)
    total = tf.reduce_sum(gradient, dims, keepdims=True)
    if not n_missing:
        return total
    return tf.reshape(total, operand.shape if operand.shape.is_fully_defined() else tf.shape(operand))


def _of_mean(op: tf.Operation, gradient: Any) -> Gradients:
    """Return the gradient of a mean: divided by the count first, then broadcast."""
    shape, dims = op.inputs[0].shape.as_list(), tf.get_static_value(op.inputs[1])
    if dims is None:
        return _by_tensorflow(op, gradient)
    reduced = {int(dim) % len(shape) for dim in dims.reshape(-1)}
    extents = [1 if dim in reduced else extent for dim, extent in enumerate(shape)]
    if any(shape[dim] is None for dim in reduced) or extents.count(None) > 1:
        return _by_tensorflow(op, gradient)
    gradient = tf.convert_to_tensor(gradient)
    share = gradient / tf.constant(math.prod(shape[dim] for dim in reduced), gradient.dtype)
    if not op.get_attr("keep_dims"):
        share = tf.reshape(share, [-1 if extent is None else extent for extent in extents])
    return [tf.tile(share, [shape[dim] if dim in reduced else 1 for dim in range(len(shape))]), None]


def _of_bias_add(op: tf.Operation, gradient: Any) -> Gradients:
    """Return the gradients of a bias that is added to images, and of the images.

    The gradients of a convolution's filter and of the bias behind it read the same gradient. On CPUs with oneDNN, TensorFlow
    makes one operator of the two, without asking whether one has to wait for the other. It may have to: a bias's sum over
    ranks comes before the collective that regathers what the filter's gradient reads, and operators that run in order
    wait for each other anyway. TensorFlow then says "Nodes in a cycle", and the step doesn't run. Of a two-dimensional view
    of the gradient the sum is the same, and the operator stays by itself.
    """
    gradient = tf.convert_to_tensor(gradient)
    if gradient.shape.rank != 4 or op.get_attr("data_format") != b"NHWC":  # channels last, as oneDNN fuses them
        return _by_tensorflow(op, gradient)
    # Channels in uneven blocks have no extent that is the same on all ranks.
    n_channels = tf.shape(gradient)[-1] if gradient.shape[-1] is None else gradient.shape[-1]
    return [gradient, tf.raw_ops.BiasAddGrad(out_backprop=tf.reshape(gradient, tf.stack([-1, n_channels])))]


def _of_convolution(op: tf.Operation, gradient: Any) -> Gradients:
    """Return the gradients of a convolution, or of a transposed one, whose filter of one pixel is moved by strides.

    The filter's gradient is taken over the pixels that the filter reads: the same sum. Over the whole image oneDNN writes
    past its workspace in float32, and crashes, where an image has few channels (uxlfoundation/oneDNN#6035).
    """
    gradient, is_transposed = tf.convert_to_tensor(gradient), op.type.endswith(TRANSPOSED)
    image, results = (gradient, op.inputs[2]) if is_transposed else (op.inputs[0], gradient)
    kernel, (_, down, right, _) = op.inputs[1], op.get_attr("strides")
    is_plain = op.get_attr("data_format") == b"NHWC" and not any(op.get_attr("explicit_paddings"))
    is_safe = kernel.shape[:2] != (1, 1) or down == right == 1 or (image.shape[-1] or 0) >= _FEW_CHANNELS
    if is_safe or not is_plain:
        return _by_tensorflow(op, gradient)
    convolution = op.type.removesuffix(TRANSPOSED)
    image_op, filter_op = (getattr(tf.raw_ops, convolution + suffix) for suffix in (TRANSPOSED, "BackpropFilter"))
    pixels, options = image[:, ::down, ::right], {"strides": [1, 1, 1, 1], "padding": "VALID"}
    kernel_grad = filter_op(input=pixels, filter_sizes=tf.shape(kernel), out_backprop=results, **options)
    if is_transposed:
        return [None, kernel_grad, getattr(tf.raw_ops, convolution)(input=pixels, filter=kernel, **options)]
    strides, padding = op.get_attr("strides"), op.get_attr("padding")
    arguments = {"input_sizes": tf.shape(image), "filter": kernel, "out_backprop": gradient}
    return [image_op(**arguments, strides=strides, padding=padding), kernel_grad]


def _register() -> frozenset[str]:
    """Register the gradients of this module with TensorFlow, for each set of operands; return the names."""
    functions: dict[str, Callable[[tf.Operation, Any], Gradients]] = {_name(MEAN, (0,)): _of_mean}
    for positions in ((0,), (1,), (0, 1)):
        functions[_name(BIAS_ADD, positions)] = _of_bias_add
        functions.update((_name(op_type, positions), _broadcasting(positions)) for op_type in _BROADCASTING)
    for op_type, positions in ((CONVOLUTION, (0, 1)), (DEPTHWISE, (0, 1)), (CONVOLUTION + TRANSPOSED, (1, 2))):
        for subset in ((), positions[:1], positions[1:], positions):
            functions[_name(op_type, subset)] = _of_convolution
    for name, function in functions.items():
        tf.RegisterGradient(name)(function)
    return frozenset(functions)


_REGISTERED = _register()
