"""Rules of operators that work along some dimensions and leave the others alone, as searching does, or that fill tensors.

Resized, warped and cropped images can be split along channels, and along images or boxes, but not along pixels: a pixel of
the result depends on pixels in other blocks.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from ..ir.graph import Operator
from .elementwise import FIRST
from .registry import op_rule
from .rule import Dims, Rule, make_rule, own_dims, pattern_rule


def all_but(op: Operator, unsplit: Collection[int], linear: tuple[tuple[int, ...], ...] = FIRST) -> Rule:
    """Return the rule of an operator that works along some dimensions, which can't be split; all others can."""
    dims = own_dims(len(op.result.shape), unsplit)
    return make_rule(op, (dims, *(None,) * (len(op.inputs) - 1)), (dims,), linear=linear)


@op_rule("FFT", "FFT2D", "FFT3D", "IFFT", "IFFT2D", "IFFT3D")
@op_rule("RFFT", "RFFT2D", "RFFT3D", "IRFFT", "IRFFT2D", "IRFFT3D", static=(1,))
def fourier_transform(op: Operator) -> Rule:
    """Return the rule of a Fourier transform of the last dimensions.

    Those of real numbers leave half of the result out (or of the operand, for the inverse ones), since the other half
    follows from it. Their second input is the extents of the transform.
    """
    rank = len(op.result.shape)
    return all_but(op, range(rank - (int(op.type[-2]) if op.type.endswith("D") else 1), rank))


def _dimensions(axes: np.ndarray, rank: int) -> set[int]:
    """Return dimensions that may be given as negative numbers as numbers from 0."""
    return {int(axis) % rank for axis in np.atleast_1d(axes)}


@op_rule("ReverseV2", static=(1,))
def reverse(op: Operator) -> Rule:
    return all_but(op, _dimensions(op.statics[1], len(op.result.shape)) if op.statics[1].size else set())


@op_rule("Roll", static=(1, 2))
def roll(op: Operator) -> Rule:
    return all_but(op, _dimensions(op.statics[2], len(op.result.shape)))


@op_rule("Fill", static=(0,))
def fill(op: Operator) -> Rule:
    return make_rule(op, (None, ()), (own_dims(len(op.result.shape)),), linear=((1,),))


@op_rule("SpaceToDepth", "DepthToSpace")
def between_space_and_depth(op: Operator) -> Rule | str:
    """Return the rule of moving squares of pixels to channels or back.

    Channels are ordered by their place in a square first. So channels can't be split, and pixels only between squares.
    """
    operand = op.operand(0)
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
    changed_dims = {i + 1 for i in range(len(blocks)) if blocks[i] > 1 or np.any(rests[i])}
    return all_but(op, changed_dims | ({0} if np.prod(blocks) > 1 else set()))


@op_rule("ExtractImagePatches")
def patches(op: Operator) -> Rule:
    return make_rule(op, ((("n",), (), (), ()),), ((("n",), (), (), ()),), linear=FIRST)


@op_rule("TopKV2", static=(1,))
def top_k(op: Operator) -> Rule:
    rows = own_dims(len(op.operand(0).shape) - 1)
    return make_rule(op, ((*rows, ("c",)), None), ((*rows, ()), (*rows, ())), fixed={"c"}, flops_per_point=5.0)


@op_rule("InTopKV2", static=(2,))
def in_top_k(op: Operator) -> Rule:
    return pattern_rule(op, "n c, n -> n", fixed={"c"})


@op_rule("LowerBound", "UpperBound")
def search_sorted(op: Operator) -> Rule:
    return pattern_rule(op, "n sorted, n v -> n v", fixed={"sorted"})


@op_rule("ReverseSequence")
def reverse_sequence(op: Operator) -> Rule:
    rank = len(op.result.shape)
    dims = own_dims(rank, [op.attrs["seq_dim"] % rank])
    return make_rule(op, (dims, (dims[op.attrs["batch_dim"] % rank],)), (dims,), linear=((0,),))


_IMAGES: Dims = (("n",), (), (), ("c",))


@op_rule("ResizeBilinear", "ResizeNearestNeighbor", "ResizeBicubic", "ResizeArea", static=(1,))
def resize(op: Operator) -> Rule:
    return make_rule(op, (_IMAGES, None), (_IMAGES,), linear=FIRST, flops_per_point=4.0)


@op_rule("ScaleAndTranslate", static=(1,))
def scale_and_translate(op: Operator) -> Rule:
    return make_rule(op, (_IMAGES, None, ((),), ((),)), (_IMAGES,), linear=FIRST, flops_per_point=8.0)


@op_rule("ImageProjectiveTransformV3", static=(2, 3))
def projective_transform(op: Operator) -> Rule:
    """Return the rule of projective transforms, of which there is one for each image, or one for all."""
    transforms = op.operand(1)
    of_image: Dims = (("n",) if transforms.shape[0] > 1 else (), ())
    linear = FIRST if not op.statics[3].any() else ()
    return make_rule(op, (_IMAGES, of_image, None, None), (_IMAGES,), linear=linear, flops_per_point=8.0)


@op_rule("CropAndResize", static=(3,))
def crop_and_resize(op: Operator) -> Rule:
    """Return the rule of cropping boxes; boxes can be split but the batch can't, since each box names its image."""
    linear = FIRST if op.attrs["extrapolation_value"] == 0 else ()
    return pattern_rule(op, "1 1 1 c, boxes 1, boxes -> boxes 1 1 c", linear=linear, flops_per_point=4.0)


@op_rule("LRN")
def local_response_normalisation(op: Operator) -> Rule:
    return pattern_rule(op, "n h w c -> n h w c", fixed={"c"}, flops_per_point=5.0)
