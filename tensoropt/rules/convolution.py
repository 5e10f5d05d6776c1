"""Convolutions, pooling, and batch normalisation.

Height and width are split only where windows don't overlap (window <= stride, and the strides cover the input exactly); an
overlapping window needs a halo of the neighbour's rows.
"""

from __future__ import annotations

from ..ir import Operator
from .elementwise import FIRST, ONE_OF_TWO
from .registry import op_rule
from .rule import Dims, Rule, make_rule


def _positions(data_format: str) -> tuple[int, int, int, int]:
    """Where batch, height, width and channel stand."""
    return (0, 2, 3, 1) if data_format == "NCHW" else (0, 1, 2, 3)


def _image(data_format: str, channel: str, spatial: tuple[str, ...] = ("h", "w")) -> Dims:
    """The factors of an image tensor; spatial dimensions that aren't named aren't split."""
    by_role = {"n": "n", "c": channel, "h": "h" if "h" in spatial else "", "w": "w" if "w" in spatial else ""}
    roles = "nchw" if data_format == "NCHW" else "nhwc"
    return tuple((by_role[role],) if by_role[role] else () for role in roles)


def _tiled(op: Operator, window: tuple[int, int], strides: tuple[int, int]) -> tuple[str, ...]:
    """The spatial dimensions along which strides tile the input exactly and hold the windows: blocks need no halo."""
    image, result = op.inputs[0], op.result
    assert image is not None
    # Paddings before the first window shift all of them, even where the extents come out as if there were none.
    if any(op.attrs.get("explicit_paddings", ())):
        return ()
    _, height, width, _ = _positions(op.attrs["data_format"])
    names = []
    for name, position, size, stride in zip("hw", (height, width), window, strides, strict=True):
        if size <= stride and image.shape[position] == result.shape[position] * stride:
            names.append(name)
    return tuple(names)


def _spatial(values: list[int], data_format: str) -> tuple[int, int]:
    _, height, width, _ = _positions(data_format)
    return values[height], values[width]


@op_rule("Conv2D")
def conv2d(op: Operator) -> Rule | str:
    image, kernel = op.inputs
    assert image is not None and kernel is not None
    data_format = op.attrs["data_format"]
    channel = _positions(data_format)[3]
    if any(d != 1 for d in op.attrs["dilations"]):
        tiled: tuple[str, ...] = ()
    else:
        tiled = _tiled(op, (kernel.shape[0], kernel.shape[1]), _spatial(op.attrs["strides"], data_format))
    grouped = kernel.shape[2] != image.shape[channel]
    # Groups stand before the channels of a group on both sides; within a group channels stay together.
    in_factor, out_factor = ("g", "g") if grouped else ("i", "o")
    extents = {"kh": kernel.shape[0], "kw": kernel.shape[1]}
    _, height, width, _ = _positions(data_format)
    extents |= {"h": op.result.shape[height], "w": op.result.shape[width]}
    if grouped:
        groups = image.shape[channel] // kernel.shape[2]
        extents |= {"g": groups, "io": kernel.shape[2] * kernel.shape[3] // groups}
    kernel_dims: Dims = (("kh",), ("kw",), () if grouped else ("i",), (out_factor,))
    return make_rule(
        op,
        (_image(data_format, in_factor, tiled), kernel_dims),
        (_image(data_format, out_factor, tiled),),
        extents=extents,
        fixed={"kh", "kw", "io"} | ({"h", "w"} - set(tiled)),
        linear=ONE_OF_TWO,
        flops_per_point=2.0,
    )


@op_rule("DepthwiseConv2dNative")
def depthwise(op: Operator) -> Rule:
    _, kernel = op.inputs
    assert kernel is not None
    data_format = op.attrs["data_format"]
    dilated = any(d != 1 for d in op.attrs["dilations"])
    window = (kernel.shape[0], kernel.shape[1])
    tiled = () if dilated else _tiled(op, window, _spatial(op.attrs["strides"], data_format))
    _, height, width, _ = _positions(data_format)
    result = tuple(names if names != ("c",) else ("c", "m") for names in _image(data_format, "c", tiled))
    return make_rule(
        op,
        (_image(data_format, "c", tiled), (("kh",), ("kw",), ("c",), ("m",))),
        (result,),
        extents={"h": op.result.shape[height], "w": op.result.shape[width]},
        fixed={"kh", "kw"} | ({"h", "w"} - set(tiled)),
        linear=ONE_OF_TWO,
        flops_per_point=2.0,
    )


def _pooling(op: Operator, linear: tuple[tuple[int, ...], ...]) -> Rule | str:
    data_format = op.attrs["data_format"]
    image = op.inputs[0]
    assert image is not None
    if len(image.shape) != 4 or data_format not in ("NHWC", "NCHW"):
        return f"only images of 4 dimensions in NHWC or NCHW are split, not {data_format}"
    batch, height, width, channel = _positions(data_format)
    ksize, strides = op.attrs["ksize"], op.attrs["strides"]
    if ksize[batch] != 1 or ksize[channel] != 1:
        return f"the window {ksize} goes over batch or channels"
    tiled = _tiled(op, _spatial(ksize, data_format), _spatial(strides, data_format))
    return make_rule(
        op,
        (_image(data_format, "c", tiled),),
        (_image(data_format, "c", tiled),),
        extents={"h": op.result.shape[height], "w": op.result.shape[width], "kh": ksize[height], "kw": ksize[width]},
        fixed={"kh", "kw"} | ({"h", "w"} - set(tiled)),
        linear=linear,
    )


@op_rule("MaxPool")
def max_pool(op: Operator) -> Rule | str:
    return _pooling(op, ())


@op_rule("AvgPool")
def avg_pool(op: Operator) -> Rule | str:
    return _pooling(op, FIRST)


@op_rule("FusedBatchNormV3", "FusedBatchNormV2", "FusedBatchNorm")
def fused_batch_norm(op: Operator) -> Rule | str:
    """In training the statistics are those of the global batch: sums that are completed inside of the operator."""
    image = op.inputs[0]
    assert image is not None
    data_format = op.attrs["data_format"]
    if len(image.shape) != 4 or data_format not in ("NHWC", "NCHW"):
        return f"only images of 4 dimensions in NHWC or NCHW are split, not {data_format}"
    dims = _image(data_format, "c")
    channel: Dims = (("c",),)
    scale = op.inputs[1]
    assert scale is not None
    per_channel = tuple(
        channel if tensor.shape == scale.shape else ((),) * len(tensor.shape) for tensor in op.outputs[1:]
    )
    # In inference mode the operands for mean and variance have the channels; in training they are empty.
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
