"""Rules of convolutions, pooling and batch normalisation.

Windows slide along height and width (and depth). Each of these is a factor with a halo; see :mod:`..reschedule.halo`. The
factor's extent is that of the result, so that the work of a split convolution is counted by its rows of results.
"""

from __future__ import annotations

from ..ir.graph import Operator
from ..reschedule.halo import Window
from .elementwise import FIRST, ONE_OF_TWO
from .registry import op_rule
from .rule import Dims, Rule, make_rule

FORMATS = {4: ("NHWC", "NCHW"), 5: ("NDHWC", "NCDHW")}


def _image(data_format: str, channel: str = "c") -> Dims:
    """Return the factors of an image tensor's dimensions; ``channel`` is the factor of its channels."""
    return tuple((channel if role == "c" else role,) for role in data_format.lower())


def _windows(op: Operator, sizes: dict[str, int]) -> dict[str, Window]:
    """Return the windows along the spatial dimensions of the first operand, by dimension (``h``, ``w``, ``d``)."""
    image, attrs = op.operand(0), op.attrs
    windows = {}
    for position, role in enumerate(attrs["data_format"].lower()):
        if role in sizes:
            extent, count = image.shape[position], op.result.shape[position]
            stride, dilation = attrs["strides"][position], attrs.get("dilations", [1] * 5)[position]
            span = (sizes[role] - 1) * dilation + 1
            before = 0
            if attrs["padding"] == "SAME":
                before = max((count - 1) * stride + span - extent, 0) // 2
            elif attrs["padding"] == "EXPLICIT":
                before = attrs["explicit_paddings"][2 * position]
            windows[role] = Window(sizes[role], stride, dilation, before, extent, count)
    return windows


def _extents(op: Operator, sizes: dict[str, int]) -> dict[str, int]:
    """Return the extents of the factors: batch, spatial dimensions of the result, and windows (``kh``, ``kw``, ...)."""
    of_result = dict(zip(op.attrs["data_format"].lower(), op.result.shape, strict=True))
    return {"n": of_result["n"]} | {role: of_result[role] for role in sizes} | {f"k{role}": sizes[role] for role in sizes}


@op_rule("Conv2D", "Conv3D")
def convolution(op: Operator) -> Rule | str:
    image, kernel = op.operand(0), op.operand(1)
    data_format = op.attrs["data_format"]
    roles = data_format.lower().replace("n", "").replace("c", "")
    sizes = dict(zip(roles, kernel.shape, strict=False))
    extents = _extents(op, sizes)
    per_group = kernel.shape[-2]
    groups = image.shape[data_format.index("C")] // per_group
    # In both images channels are ordered by group first, so groups can be split; the channels of a group stay together.
    in_factor, out_factor = ("g", "g") if groups > 1 else ("i", "o")
    if groups > 1:
        extents |= {"g": groups, "io": per_group * kernel.shape[-1] // groups}
    return make_rule(
        op,
        (_image(data_format, in_factor), (*((f"k{role}",) for role in roles), () if groups > 1 else ("i",), (out_factor,))),
        (_image(data_format, out_factor),),
        extents=extents,
        fixed={"io", *(f"k{role}" for role in roles)},
        linear=ONE_OF_TWO,
        halos=_windows(op, sizes),
        flops_per_point=2.0,
    )


@op_rule("DepthwiseConv2dNative")
def depthwise(op: Operator) -> Rule:
    sizes = dict(zip("hw", op.operand(1).shape, strict=False))
    image = _image(op.attrs["data_format"])
    return make_rule(
        op,
        (image, (("kh",), ("kw",), ("c",), ("m",))),
        (tuple(("c", "m") if names == ("c",) else names for names in image),),
        extents=_extents(op, sizes),
        fixed={"kh", "kw"},
        linear=ONE_OF_TWO,
        halos=_windows(op, sizes),
        flops_per_point=2.0,
    )


@op_rule("Conv2DBackpropInput", static=(0,))
def transposed(op: Operator) -> Rule | str:
    """Return the rule of a transposed convolution; the kernel's last dimension is the channels of the operand."""
    kernel, image = op.operand(1), op.operand(2)
    data_format = op.attrs["data_format"]
    channel = data_format.index("C")
    if kernel.shape[2] != op.result.shape[channel]:
        return "a transposed convolution in groups runs whole"
    spatial = {role: image.shape[position] for position, role in enumerate(data_format.lower()) if role in "hw"}
    operand, result = (
        tuple(names if names not in (("h",), ("w",)) else () for names in _image(data_format, factor)) for factor in "io"
    )
    return make_rule(
        op,
        (None, (("kh",), ("kw",), ("o",), ("i",)), operand),
        (result,),
        extents={"n": image.shape[0], **spatial, "kh": kernel.shape[0], "kw": kernel.shape[1]},
        fixed={"h", "w", "kh", "kw"},
        linear=((1,), (2,)),
        flops_per_point=2.0,
    )


@op_rule("AvgPool", "AvgPool3D", "MaxPool", "MaxPool3D")
def pooling(op: Operator) -> Rule | str:
    data_format = op.attrs["data_format"]
    image = op.operand(0)
    if data_format not in FORMATS.get(len(image.shape), ()):
        return f"only images in {', '.join(f for formats in FORMATS.values() for f in formats)} are split, not {data_format}"
    of_role = dict(zip(data_format.lower(), op.attrs["ksize"], strict=True))
    if of_role.pop("n") != 1 or of_role.pop("c") != 1:
        return f"the window {op.attrs['ksize']} goes over batch or channels"
    dims = _image(data_format)
    return make_rule(
        op,
        (dims,),
        (dims,),
        extents=_extents(op, of_role),
        fixed={f"k{role}" for role in of_role},
        linear=FIRST if op.type.startswith("Avg") else (),
        halos=_windows(op, of_role),
    )


@op_rule("FusedBatchNormV3", "FusedBatchNormV2", "FusedBatchNorm")
def fused_batch_norm(op: Operator) -> Rule | str:
    """Return the rule of batch normalisation.

    In training the statistics are those of the global batch: sums that collectives inside the operator complete.
    """
    data_format = op.attrs["data_format"]
    if data_format not in FORMATS[4]:
        return f"only images in {' or '.join(FORMATS[4])} are split, not {data_format}"
    dims = _image(data_format)
    channel: Dims = (("c",),)
    scale = op.operand(1)
    per_channel = tuple(channel if tensor.shape == scale.shape else ((),) * len(tensor.shape) for tensor in op.outputs[1:])
    # In inference the operands for mean and variance have one element per channel; in training they are empty.
    statistics = tuple(channel if tensor is not None and tensor.shape != (0,) else ((),) for tensor in op.inputs[3:])
    batch = frozenset("nhw")
    return make_rule(
        op,
        (dims, channel, channel, *statistics),
        (dims, *per_channel),
        inner=batch if op.attrs["is_training"] else (),
        completed=batch,
        flops_per_point=8.0,
    )
