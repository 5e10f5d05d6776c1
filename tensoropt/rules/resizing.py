"""Rules of resizing, warping and cropping images, and of local response normalisation.

Resized, warped and cropped images can be split along channels, and along images or boxes, but not along pixels: a pixel of
the result depends on pixels in other blocks.
"""

from __future__ import annotations

from ..ir.graph import Operator
from .elementwise import FIRST
from .registry import op_rule
from .rule import Dims, Rule, make_rule, pattern_rule

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
