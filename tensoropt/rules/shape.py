"""Rules of operators that move elements and compute nothing."""

from __future__ import annotations

import math

import numpy as np

from ..ir.graph import Operator
from ..reschedule.layout import Shape
from .elementwise import FIRST, broadcast_dims
from .rearranging import all_but
from .registry import op_rule
from .rule import Dims, Rule, make_rule, own_dims


def reshape_dims(source: Shape, target: Shape) -> tuple[Dims, Dims, dict[str, int]]:
    """Return the factors that two shapes of the same elements share.

    The dimensions of both shapes are divided into the shortest groups with equal products. In each group, the greatest
    common divisor of the two leading dimensions is a factor of both: along leading dimensions, blocks stay blocks.

    Returns:
        The factors of each dimension of ``source`` and of ``target``, and the factors' extents.
    """
    source_dims: list[tuple[str, ...]] = [()] * len(source)
    target_dims: list[tuple[str, ...]] = [()] * len(target)
    extents: dict[str, int] = {}
    i = j = 0
    if math.prod(source) == 0:
        return tuple(source_dims), tuple(target_dims), extents
    while i < len(source) and j < len(target):
        if source[i] == 1:
            i += 1
        elif target[j] == 1:
            j += 1
        else:
            name = f"r{len(extents)}"
            extents[name] = math.gcd(source[i], target[j])
            source_dims[i] = target_dims[j] = (name,)
            left, right = source[i], target[j]
            i, j = i + 1, j + 1
            while left != right:
                if left < right:
                    left, i = left * source[i], i + 1
                else:
                    right, j = right * target[j], j + 1
    return tuple(source_dims), tuple(target_dims), extents


@op_rule("Reshape", "ExpandDims", static=(1,))
@op_rule("Squeeze")
def reshape(op: Operator) -> Rule:
    source, target, extents = reshape_dims(op.operand(0).shape, op.result.shape)
    statics = (None,) * (len(op.inputs) - 1)
    return make_rule(op, (source, *statics), (target,), extents=extents, linear=FIRST, flops_per_point=0.0)


@op_rule("Transpose", static=(1,))
def transpose(op: Operator) -> Rule:
    dims = own_dims(len(op.result.shape))
    result = tuple(dims[int(axis)] for axis in op.statics[1])
    return make_rule(op, (dims, None), (result,), linear=FIRST)


@op_rule("BroadcastTo", static=(1,))
def broadcast_to(op: Operator) -> Rule:
    rank = len(op.result.shape)
    return make_rule(op, (broadcast_dims(op.operand(0), rank), None), (broadcast_dims(op.result, rank),), linear=FIRST)


@op_rule("Tile", static=(1,))
def tile(op: Operator) -> Rule:
    return all_but(op, [i for i, times in enumerate(op.statics[1]) if times != 1])


@op_rule("ConcatV2", static=(-1,))
def concat(op: Operator) -> Rule:
    rank = len(op.result.shape)
    dims = own_dims(rank, [int(op.statics[len(op.inputs) - 1]) % rank])
    n_parts = len(op.inputs) - 1
    return make_rule(op, (*(dims,) * n_parts, None), (dims,), linear=(tuple(range(n_parts)),))


@op_rule("Pack")
def pack(op: Operator) -> Rule:
    rank = len(op.result.shape)
    dims = own_dims(rank, [op.attrs["axis"] % rank])
    part = tuple(names for names in dims if names)
    return make_rule(op, (part,) * len(op.inputs), (dims,), linear=(tuple(range(len(op.inputs))),))


@op_rule("Unpack")
def unpack(op: Operator) -> Rule:
    rank = len(op.operand(0).shape)
    dims = own_dims(rank, [op.attrs["axis"] % rank])
    return make_rule(op, (dims,), (tuple(names for names in dims if names),) * len(op.outputs), linear=FIRST)


@op_rule("Split", static=(0,))
@op_rule("SplitV", static=(1, 2))
def split(op: Operator) -> Rule:
    rank, ((position, _),) = len(op.result.shape), op.operands
    dims = own_dims(rank, [int(op.statics[max(op.statics)]) % rank])
    operands = tuple(dims if i == position else None for i in range(len(op.inputs)))
    return make_rule(op, operands, (dims,) * len(op.outputs), linear=((position,),))


@op_rule("Pad", "MirrorPad", static=(1,))
@op_rule("PadV2", static=(1, 2))
def pad(op: Operator) -> Rule:
    padded = [i for i, amounts in enumerate(np.asarray(op.statics[1])) if amounts.any()]
    return all_but(op, padded, () if 2 in op.statics and op.statics[2].any() else FIRST)


@op_rule("Slice", static=(1, 2))
def slice_(op: Operator) -> Rule:
    extents = zip(op.operand(0).shape, op.result.shape, strict=True)
    return all_but(op, [i for i, (before, after) in enumerate(extents) if before != after])


def _strided_entries(op: Operator) -> list[tuple[bool, bool, int]]:
    """Return for each entry of a StridedSlice whether it reads a dimension, whether it makes one, and its stride.

    An ellipsis is as many entries as it stands for, and dimensions without an entry have one at the end.
    """
    rank, strides, masks = len(op.operand(0).shape), op.statics[3], op.attrs
    new, ellipsis, shrunk = (
        [bool(masks[name] >> i & 1) for i in range(len(strides))]
        for name in ("new_axis_mask", "ellipsis_mask", "shrink_axis_mask")
    )
    entries: list[tuple[bool, bool, int]] = []
    for i, stride in enumerate(strides):
        if ellipsis[i]:
            n_named = len(strides) - sum(new) - 1
            entries += [(True, True, 1)] * (rank - n_named)
        else:
            entries.append((not new[i], new[i] or not shrunk[i], stride))
    return entries + [(True, True, 1)] * (rank - sum(reads for reads, _, _ in entries))


@op_rule("StridedSlice", static=(1, 2, 3))
def strided_slice(op: Operator) -> Rule:
    operand, i, j = op.operand(0), 0, 0
    source: list[tuple[str, ...]] = [()] * len(operand.shape)
    target: list[tuple[str, ...]] = [()] * len(op.result.shape)
    for number, (reads, makes, stride) in enumerate(_strided_entries(op)):
        # A dimension that is kept whole but read backwards has other blocks in the result, so it can't be split.
        if reads and makes and operand.shape[i] == op.result.shape[j] and stride > 0:
            source[i] = target[j] = (f"d{number}",)
        i, j = i + reads, j + makes
    return make_rule(op, (tuple(source), None, None, None), (tuple(target),), linear=FIRST)
