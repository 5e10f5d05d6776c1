"""One operator on local operands: the same TensorFlow operator, its attributes localised, or a special lowering.

Everything is written over a list of ranks: one under MPI, all of them in the emulated engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_library

from ..common.settings import RandomMode, random_mode
from ..ir.graph import ARGUMENTS, CONSTANT, Operator
from ..ir.slicing import Slice
from ..reschedule.layout import Layout
from ..rules.rule import Config, Interface, Rule
from .gradient_overrides import lean_gradient
from .local import local_constant, local_statics, opaque, uniform_shape
from .ops.dilated_convolution import convolved, is_dilated
from .ops.halo import AVERAGES, averages, of_frames

DEPTHWISE_ATTRIBUTES = ("strides", "padding", "explicit_paddings")
Values = list[tf.Tensor]  # one per rank that is built here
Complete = Callable[[int, Values], Values]


@dataclass(frozen=True, slots=True)
class Job:
    """An operator with its config, as the lowering of one operator sees it.

    ``complete(k, values)`` runs the k-th resharding inside of the operator; ``random`` says how random operators draw;
    ``differentiated`` are the positions of the operands to which a gradient comes back, where that is known; ``slice`` says
    of which slice of the batch the operator is, where a step has several. What is emitted in ``following(i)`` is all that
    the backward pass reads of the operand at position i, and is made again from it where that isn't kept.
    """

    op: Operator
    rule: Rule
    config: Config
    interface: Interface
    ranks: tuple[int, ...]
    complete: Complete
    random: RandomMode = field(default_factory=random_mode)
    differentiated: frozenset[int] = frozenset()
    slice: Slice | None = None
    following: Callable[[int], AbstractContextManager[None]] = lambda position: nullcontext()

    def layout(self, operand: int) -> Layout:
        """The layout in which an operand is given, by its position among the inputs."""
        demand = self.interface.operands[operand]
        assert demand is not None
        return demand.layout


Lowering = Callable[[Job, Sequence[Values]], list[Values]]


@dataclass(frozen=True, slots=True)
class Special:
    """A special lowering: needed where an inner factor is split, or always."""

    function: Lowering
    always: bool


def lowering(*types: str, always: bool = False) -> Callable[[Lowering], Lowering]:
    """Register how operator types are lowered where the TensorFlow operator on local operands would not do.

    The decorated function takes a job and the local values of each operand, and returns those of each result.

    Args:
        always: whether the function is called for every config, and not only where an inner factor is split.
    """

    def register(function: Lowering) -> Lowering:
        for name in types:
            if name in _SPECIAL:
                before = _SPECIAL[name].function.__module__
                raise ValueError(f"operator type {name} has a special lowering already: {before}")
            _SPECIAL[name] = Special(function, always)
        return function

    return register


_SPECIAL: dict[str, Special] = {}


def special_lowering(op_type: str) -> Special | None:
    """How an operator type is lowered specially, or None if it isn't."""
    _load()
    return _SPECIAL.get(op_type)


def _load() -> None:
    """Import the modules that register special lowerings; not at import time, since they import this one."""
    from .ops import batch_norm, control_flow, lookups, matrices, random, scattering, softmax, statistics  # noqa: F401


def emit(job: Job, operands: Sequence[Values]) -> list[Values]:
    """Emit an operator on every rank that is built here; per result its values, with their static shapes set.

    Args:
        operands: per tensor operand, in order, its local values.
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
    """The same TensorFlow operator on every rank, with what it says about shapes localised."""
    per_rank = [_emit_raw(job, rank, [values[i] for values in operands]) for i, rank in enumerate(job.ranks)]
    return [list(values) for values in zip(*per_rank, strict=True)]


def _over_frames(job: Job, operands: Sequence[Values]) -> list[Values]:
    """An operator whose windows overlap blocks, on all that the windows cover."""
    framed = replace(job, op=of_frames(job.op))
    operands = [job.complete(0, operands[0]), *operands[1:]]
    results = [_emit_raw(framed, rank, [values[i] for values in operands])[0] for i, rank in enumerate(job.ranks)]
    if job.op.type in AVERAGES:
        layout = job.interface.results[0]
        results = [averages(job.rule, layout, *pair) for pair in zip(job.ranks, results, strict=True)]
    return [results]


def _emit_raw(job: Job, rank: int, operands: list[tf.Tensor]) -> list[tf.Tensor]:
    op = job.op
    if op.type == CONSTANT:
        layout, value = job.interface.results[0], op.statics[0]
        if job.slice is not None:
            value = job.slice.of(job.slice.whole(op).statics[0], job.slice.slicing.forms[op.result.name])
        return [local_constant(value, layout, op.result.shape, rank, tf.as_dtype(op.result.dtype))]
    statics = local_statics(op, job.interface, rank)
    remaining = iter(operands)
    inputs = [statics[i] if tensor is None else next(remaining) for i, tensor in enumerate(op.inputs)]
    if op.type == "Squeeze":
        # Squeeze without dimensions would also take away a block of extent 1.
        shape = op.result.shape
        layout = job.interface.results[0]
        local = list(layout.local_shape(shape, rank))
        return [tf.reshape(inputs[0], local if layout.is_even(shape) else opaque(local, tf.int32))]
    with lean_gradient(op, job.differentiated):
        return raw_operator(op, inputs)


def raw_operator(op: Operator, inputs: Sequence[object]) -> list[tf.Tensor]:
    """The TensorFlow operator itself."""
    arguments: dict[str, object] = {}
    remaining = iter(inputs)
    for name, length in op.attrs[ARGUMENTS]:
        arguments[name] = next(remaining) if length is None else [next(remaining) for _ in range(length)]
    attributes = {key: value for key, value in op.attrs.items() if not key.startswith("_")}

    def make(**arguments: object) -> Any:
        # tf.raw_ops would rename some arguments; this is what it calls, with the names of the operator's definition.
        return op_def_library.apply_op(op.type, name=op.name, **arguments, **attributes)

    if _is_depthwise(op):
        return [_as_depthwise(op, arguments, attributes)]
    if is_dilated(op) and not _is_convolution_in_groups(op):
        return [convolved(op, *inputs)]
    if _is_convolution_in_groups(op):
        # TensorFlow has no gradients of these on CPUs, XLA has: so Keras compiles them too.
        make = tf.function(make, jit_compile=True, autograph=False)
    made = make(**arguments)
    return tf.nest.flatten(made) if not isinstance(made, tf.Operation) else []


def _is_convolution_in_groups(op: Operator) -> bool:
    if op.type not in ("Conv2D", "Conv3D"):
        return False
    image, kernel = (tensor.shape for _, tensor in op.operands)
    return image[op.attrs["data_format"].index("C")] != kernel[-2]


def _is_depthwise(op: Operator) -> bool:
    """A convolution in groups of one channel each, of a kind that the depthwise kernels know."""
    if op.type != "Conv2D" or not _is_convolution_in_groups(op) or op.attrs["data_format"] != "NHWC":
        return False
    _, down, right, _ = op.attrs["strides"]
    return op.operands[1][1].shape[-2] == 1 and down == right and set(op.attrs.get("dilations", (1,))) == {1}


def _as_depthwise(op: Operator, arguments: Mapping[str, object], attributes: Mapping[str, object]) -> tf.Tensor:
    """The same sums by the depthwise kernels, whose gradients need no compiler: XLA takes seconds for each."""
    (_, image), (_, kernel) = op.operands
    rows, columns, _, n_results = kernel.shape
    by_channel = tf.reshape(arguments["filter"], [rows, columns, -1, n_results // image.shape[-1]])
    known = {name: attributes[name] for name in DEPTHWISE_ATTRIBUTES if name in attributes}
    return tf.raw_ops.DepthwiseConv2dNative(input=arguments["input"], filter=by_channel, name=op.name, **known)
