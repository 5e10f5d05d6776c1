"""Rules of operators that move elements within some dimensions and leave the others alone, or that fill tensors."""

from __future__ import annotations

import numpy as np

from ..ir.graph import Operator
from .elementwise import FIRST
from .registry import op_rule
from .rule import Dims, Rule, make_rule


def _all_but(op: Operator, moved: set[int]) -> Rule:
    """Return the rule of an operator that moves elements within some dimensions; all others can be split."""
    rank = len(op.result.shape)
    dims = tuple(() if i in moved else (f"d{i}",) for i in range(rank))
    return make_rule(op, (dims, *(None,) * (len(op.inputs) - 1)), (dims,), linear=FIRST)


def _dimensions(given: np.ndarray, rank: int) -> set[int]:
    """Return dimensions that may be given as negative numbers as numbers from 0."""
    return {int(axis) % rank for axis in np.atleast_1d(given)}


@op_rule("ReverseV2", static=(1,))
def reverse(op: Operator) -> Rule:
    return _all_but(op, _dimensions(op.statics[1], len(op.result.shape)) if op.statics[1].size else set())


@op_rule("Roll", static=(1, 2))
def roll(op: Operator) -> Rule:
    return _all_but(op, _dimensions(op.statics[2], len(op.result.shape)))


@op_rule("Fill", static=(0,))
def fill(op: Operator) -> Rule:
    dims = tuple((f"d{i}",) for i in range(len(op.result.shape)))
    return make_rule(op, (None, ()), (dims,), linear=((1,),))


@op_rule("SpaceToDepth", "DepthToSpace")
def between_space_and_depth(op: Operator) -> Rule | str:
    """Return the rule of moving squares of pixels to channels or back.

    Channels are ordered by their place in a square first. So channels can't be split, and pixels only between squares.
    """
    operand = op.inputs[0]
    assert operand is not None
    data_format = op.attrs["data_format"]
    if data_format not in ("NHWC", "NCHW"):
        return f"only images in NHWC or NCHW are split, not {data_format}"
    squares = op.result if op.type == "SpaceToDepth" else operand
    dims: Dims = tuple(() if role == "C" else (role.lower(),) for role in data_format)
    extents = {role.lower(): squares.shape[i] for i, role in enumerate(data_format) if role != "C"}
    return make_rule(op, (dims,), (dims,), extents=extents, linear=FIRST)


@op_rule("SpaceToBatchND", "BatchToSpaceND", static=(1, 2))
def between_space_and_batch(op: Operator) -> Rule:
    """Return the rule of moving blocks of pixels to the batch or back.

    The batch of the small images is ordered by their place in a block first and by image last, so it can't be split.
    """
    blocks, rests = op.statics[1], op.statics[2]
    moved = {i + 1 for i in range(len(blocks)) if blocks[i] > 1 or np.any(rests[i])}
    return _all_but(op, moved | ({0} if np.prod(blocks) > 1 else set()))


@op_rule("ExtractImagePatches")
def patches(op: Operator) -> Rule:
    return make_rule(op, ((("n",), (), (), ()),), ((("n",), (), (), ()),), linear=FIRST)
