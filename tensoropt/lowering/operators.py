"""Emit one operator on local operands: the same TensorFlow operator with localised attributes, or a special lowering.

Everything is written over a list of ranks: one rank with real collectives, all of them in the emulated engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_library

from ..ir.graph import ARGUMENTS, CONSTANT, Operator
from ..ir.micro_batching import MicroBatch
from ..reschedule.layout import Layout
from ..rules.rule import Config, Interface, Rule
from .dilated_convolution import convolved, is_dilated
from .gradient_overrides import lean_gradient
from .localise import local_constant, local_shape, local_statics, uniform_shape

DEPTHWISE_ATTRIBUTES = ("strides", "padding", "explicit_paddings")
Values = list[tf.Tensor]  # one per rank that this process builds
Complete = Callable[[int, Values], Values]


def _no_resharding(k: int, values: Values) -> Values:
    """Raise AssertionError: on one device, and in a composite operator, nothing is resharded inside of an operator."""
    raise AssertionError("nothing is resharded inside of this operator")


@dataclass(frozen=True, slots=True)
class Job:
    """An operator with its config, and all that its lowering needs to know.

    Attributes:
        interface: the layouts of its operands and results, which follow from rule and config.
        ranks: the ranks that this process builds.
        complete: ``complete(k, values)`` emits the k-th resharding inside of the operator.
        differentiated: the positions of the operands to which a gradient comes back, where that is known.
        micro_batch: the micro-batch that the operator belongs to, where a step has several.
        rematerialized_with: ``rematerialized_with(i)`` is a context in which to emit all that the backward pass reads of
            the operand at position i; it is rematerialized from the operand where that isn't saved.
        reads_table: whether the operator is a lookup that may read the variable itself instead of its value.
        runs: ``runs()`` returns how often a random operator has drawn before this step; None: it counts for itself.
    """

    op: Operator
    rule: Rule
    config: Config
    interface: Interface
    ranks: tuple[int, ...]
    complete: Complete = _no_resharding
    differentiated: frozenset[int] = frozenset()
    micro_batch: MicroBatch | None = None
    rematerialized_with: Callable[[int], AbstractContextManager[None]] = lambda position: nullcontext()
    reads_table: bool = False
    runs: Callable[[], Values] | None = None

    def layout(self, operand: int) -> Layout:
        """Return the layout in which an operand is given, by its position among the inputs."""
        return self.interface.operand(operand).layout


Lowering = Callable[[Job, Sequence[Values]], list[Values]]


@dataclass(frozen=True, slots=True)
class Special:
    """A special lowering.

    Attributes:
        always: whether it is used for every config, and not only where an inner factor is split.
    """

    function: Lowering
    always: bool


def lowering(*types: str, always: bool = False) -> Callable[[Lowering], Lowering]:
    """Return a decorator that registers a function as the special lowering of operator types.

    A special lowering is needed where the TensorFlow operator on local operands would not do. The function takes a job and
    the local values of each operand, and returns the local values of each result.

    Args:
        always: whether the function is called for every config, and not only where an inner factor is split.

    Raises:
        ValueError: one of the types has a special lowering already.
    """

    def register(function: Lowering) -> Lowering:
        for name in types:
            if name in _SPECIAL:
                module = _SPECIAL[name].function.__module__
                raise ValueError(f"operator type {name} has a special lowering already: {module}")
            _SPECIAL[name] = Special(function, always)
        return function

    return register


_SPECIAL: dict[str, Special] = {}


def special_lowering(op_type: str) -> Special | None:
    return _SPECIAL.get(op_type)


def emit(job: Job, operands: Sequence[Values]) -> list[Values]:
    """Emit an operator on every rank that this process builds; return, for each result, its values with static shapes set.

    Args:
        operands: for each tensor operand, in order, its local values.
    """
    special = special_lowering(job.op.type)
    splits_inner = any(job.config.degree(name) > 1 for name in job.rule.inner)
    if job.rule.exchanged(job.config):
        results = _over_frames(job, operands)
    elif special is not None and (splits_inner or special.always):
        results = special.function(job, operands)
    else:
        results = emit_plain(job, operands)
    for tensor, layout, values in zip(job.op.outputs, job.interface.results, results, strict=True):
        for value in values:
            value.set_shape(uniform_shape(layout, tensor.shape))
    return results


def emit_plain(job: Job, operands: Sequence[Values]) -> list[Values]:
    """Emit the same TensorFlow operator on every rank, with its shape arguments localised."""
    per_rank = [_emit_raw(job, rank, [values[i] for values in operands]) for i, rank in enumerate(job.ranks)]
    return [list(values) for values in zip(*per_rank, strict=True)]


def _over_frames(job: Job, operands: Sequence[Values]) -> list[Values]:
    """Emit an operator whose windows overlap blocks, on all elements that its windows cover: see :mod:`..reschedule.halo`.

    The operand is exchanged first, so that each rank has all these elements, padding included. The operator then runs
    without padding of its own, and computes the rank's block of results.
    """
    attrs = dict(job.op.attrs, padding="VALID")
    if "explicit_paddings" in attrs:
        attrs["explicit_paddings"] = []
    framed = replace(job, op=replace(job.op, attrs=attrs))
    operands = [job.complete(0, operands[0]), *operands[1:]]
    results = [_emit_raw(framed, rank, [values[i] for values in operands])[0] for i, rank in enumerate(job.ranks)]
    if job.op.type in ("AvgPool", "AvgPool3D"):
        layout = job.interface.results[0]
        results = [_averages(job.rule, layout, *pair) for pair in zip(job.ranks, results, strict=True)]
    return [results]


def _averages(rule: Rule, layout: Layout, rank: int, value: tf.Tensor) -> tf.Tensor:
    """Return the averages that TensorFlow defines, which don't count padding, from averages that count filled zeros as well.

    Args:
        value: a rank's averages over windows, filled zeros counted.
    """
    factors = np.ones((), np.float64)
    for dim, names in enumerate(rule.results[0]):
        window = rule.halos.get(names[0]) if names else None
        dim_factors = np.ones(1) if window is None else window.size / np.array(window.real_counts())
        factors = factors * dim_factors.reshape([-1 if i == dim else 1 for i in range(len(rule.results[0]))])
    if (factors == 1).all():
        return value
    # Each rank takes its shard of the factors. A dimension along which they are the same has extent 1 and isn't split.
    splits = tuple(axes if factors.shape[dim] > 1 else () for dim, axes in enumerate(layout.splits))
    shard = local_constant(factors, Layout(layout.mesh, splits), factors.shape, rank, tf.float64)
    return value * tf.cast(shard, value.dtype)


def _emit_raw(job: Job, rank: int, operands: list[tf.Tensor]) -> list[tf.Tensor]:
    """Emit the TensorFlow operator on one rank; a constant becomes the rank's shard of it."""
    op = job.op
    if op.type == CONSTANT:
        layout, value = job.interface.results[0], op.statics[0]
        if job.micro_batch is not None:
            value = job.micro_batch.of(
                job.micro_batch.full_batch(op).statics[0], job.micro_batch.micro_batching.forms[op.result.name]
            )
        return [local_constant(value, layout, op.result.shape, rank, tf.as_dtype(op.result.dtype))]
    statics = local_statics(op, job.interface, rank)
    remaining = iter(operands)
    inputs = [statics[i] if tensor is None else next(remaining) for i, tensor in enumerate(op.inputs)]
    if op.type == "Squeeze":
        # Squeeze without dimensions would also remove a dimension whose local extent is 1.
        return [tf.reshape(inputs[0], local_shape(job.interface.results[0], op.result.shape, rank))]
    with lean_gradient(op, job.differentiated):
        return raw_operator(op, inputs)


def raw_operator(op: Operator, inputs: Sequence[object]) -> list[tf.Tensor]:
    """Emit the TensorFlow operator with this operator's attributes.

    Args:
        inputs: one for each input of the operator: a tensor, or a static value.
    """
    arguments: dict[str, object] = {}
    remaining = iter(inputs)
    for name, length in op.attrs[ARGUMENTS]:
        arguments[name] = next(remaining) if length is None else [next(remaining) for _ in range(length)]
    attributes = {key: value for key, value in op.attrs.items() if not key.startswith("_")}

    def make(**arguments: object) -> Any:
        """Emit the operator with these arguments."""
        # tf.raw_ops would rename some arguments. This is what tf.raw_ops calls, with the names of the operator's definition.
        return op_def_library.apply_op(op.type, name=op.name, **arguments, **attributes)

    if _is_depthwise(op):
        return [_as_depthwise(op, arguments, attributes)]
    if is_dilated(op) and not _is_convolution_in_groups(op):
        return [convolved(op, *inputs)]
    if _is_convolution_in_groups(op):
        # TensorFlow has no gradients of grouped convolutions on CPUs, but XLA has: so they are compiled, as Keras does it.
        make = tf.function(make, jit_compile=True, autograph=False)
    result = make(**arguments)
    return tf.nest.flatten(result) if not isinstance(result, tf.Operation) else []


def _is_convolution_in_groups(op: Operator) -> bool:
    """Return whether an operator is a grouped convolution: its kernel takes fewer channels than the image has."""
    if op.type not in ("Conv2D", "Conv3D"):
        return False
    image, kernel = (tensor.shape for _, tensor in op.operands)
    return image[op.attrs["data_format"].index("C")] != kernel[-2]


def _is_depthwise(op: Operator) -> bool:
    """Return whether an operator is a convolution in groups of one channel each that the depthwise kernels support."""
    if op.type != "Conv2D" or not _is_convolution_in_groups(op) or op.attrs["data_format"] != "NHWC":
        return False
    _, down, right, _ = op.attrs["strides"]
    return op.operands[1][1].shape[-2] == 1 and down == right and set(op.attrs.get("dilations", (1,))) == {1}


def _as_depthwise(op: Operator, arguments: Mapping[str, object], attributes: Mapping[str, object]) -> tf.Tensor:
    """Emit a convolution as a depthwise one, which makes the same sums.

    The gradients of the depthwise kernels need no XLA, which takes seconds to compile each.
    """
    (_, image), (_, kernel) = op.operands
    rows, columns, _, n_results = kernel.shape
    kernels = tf.reshape(arguments["filter"], [rows, columns, -1, n_results // image.shape[-1]])
    options = {name: attributes[name] for name in DEPTHWISE_ATTRIBUTES if name in attributes}
    return tf.raw_ops.DepthwiseConv2dNative(input=arguments["input"], filter=kernels, name=op.name, **options)
