"""Cases of operators on images: convolutions, pools and batch normalisation; see :mod:`.cases`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .case import Case, Static, case, f, f32, ints, ties


def image_cases() -> list[Case]:
    return _convolutions() + _transposed() + _pools() + _volumes() + _batch_norms()


def _convolutions() -> list[Case]:
    def conv(what: str, image: Sequence[int], kernel: Sequence[int], **attrs: Any) -> Case:
        return case(f"Conv2D/{what}", f(*image), f(*kernel), **{"strides": [1, 1, 1, 1], "padding": "VALID", **attrs})

    def depthwise(what: str, image: Sequence[int], kernel: Sequence[int], **attrs: Any) -> Case:
        attrs = {"strides": [1, 1, 1, 1], "padding": "VALID", **attrs}
        return case(f"DepthwiseConv2dNative/{what}", f(*image), f(*kernel), **attrs)

    tiling, first = {"strides": [1, 2, 2, 1]}, {"data_format": "NCHW"}
    explicit = {"padding": "EXPLICIT", "explicit_paddings": [0, 0, 1, 0, 1, 0, 0, 0]}
    lopsided = {"padding": "EXPLICIT", "explicit_paddings": [0, 0, 2, 1, 0, 3, 0, 0]}
    # TensorFlow's kernels for CPUs have no gradient of these.
    ungraded = {"differentiable": False}
    return [
        conv("SAME", (3, 5, 4, 2), (3, 3, 2, 3), padding="SAME"),
        conv("VALID", (3, 5, 4, 2), (3, 2, 2, 3)),
        conv("1x1", (2, 5, 3, 3), (1, 1, 3, 2)),
        conv("window is stride", (3, 4, 6, 2), (2, 2, 2, 3), **tiling),
        conv("window is stride, rest left over", (3, 5, 7, 2), (2, 2, 2, 3), **tiling),
        conv("window is stride, SAME", (3, 5, 4, 2), (2, 2, 2, 3), padding="SAME", **tiling),
        conv("window is stride, shifted by paddings", (3, 4, 6, 2), (2, 2, 2, 3), **tiling, **explicit),
        conv("strides", (3, 7, 5, 2), (3, 3, 2, 3), padding="SAME", **tiling),
        conv("strides, VALID", (2, 9, 7, 2), (3, 3, 2, 2), **tiling),
        conv("strides of three", (2, 11, 8, 2), (4, 5, 2, 2), padding="SAME", strides=[1, 3, 3, 1]),
        conv("gaps between windows", (3, 9, 6, 2), (2, 2, 2, 3), padding="SAME", strides=[1, 3, 3, 1]),
        conv("1x1 with strides", (3, 6, 4, 2), (1, 1, 2, 3), **tiling),
        conv("1x1 with strides, odd", (3, 7, 5, 2), (1, 1, 2, 3), padding="SAME", **tiling),
        conv("explicit paddings", (2, 5, 4, 2), (3, 4, 2, 2), **lopsided),
        conv("explicit paddings and strides", (2, 7, 6, 2), (3, 4, 2, 2), **tiling, **lopsided),
        conv("7x7", (1, 9, 8, 2), (7, 7, 2, 3), padding="SAME", **tiling),
        conv("halo wider than a block", (1, 4, 3, 2), (5, 5, 2, 2), padding="SAME"),
        conv("few rows of results", (2, 7, 6, 2), (5, 4, 2, 2)),
        conv("dilated", (3, 7, 5, 2), (2, 2, 2, 3), dilations=[1, 2, 2, 1]),
        conv("dilated, SAME", (2, 7, 5, 2), (3, 3, 2, 2), padding="SAME", dilations=[1, 2, 2, 1]),
        conv("dilated, strides", (2, 9, 8, 2), (3, 2, 2, 2), dilations=[1, 2, 2, 1], **tiling, **ungraded),
        conv("dilated in two, stride of one", (2, 5, 6, 2), (1, 2, 2, 3), dilations=[1, 1, 2, 1]),
        conv("grouped", (3, 4, 4, 4), (3, 3, 2, 6), **ungraded),
        conv("grouped by channel", (3, 5, 4, 4), (3, 3, 1, 8), padding="SAME", **ungraded),
        conv("channels first", (3, 2, 5, 4), (3, 3, 2, 3), strides=[1, 1, 1, 1], **first),
        conv("channels first, SAME", (2, 2, 5, 4), (3, 3, 2, 2), strides=[1, 1, 2, 1], padding="SAME", **first),
        conv("channels first, window is stride", (3, 2, 4, 6), (2, 2, 2, 3), strides=[1, 1, 2, 2], **first),
        depthwise("SAME", (3, 5, 4, 3), (3, 3, 3, 2), padding="SAME"),
        depthwise("strides", (2, 7, 5, 2), (3, 3, 2, 2), padding="SAME", **tiling),
        depthwise("multiplier", (2, 3, 4, 2), (2, 2, 2, 3)),
        depthwise("one channel", (3, 3, 4, 1), (2, 2, 1, 3)),
        depthwise("multiplier of 1", (3, 3, 4, 5), (2, 2, 5, 1)),
        depthwise("window is stride", (3, 4, 6, 2), (2, 2, 2, 2), **tiling),
        depthwise("shifted by paddings", (3, 4, 6, 2), (2, 2, 2, 2), **tiling, **explicit),
        depthwise("channels first", (3, 2, 4, 6), (2, 2, 2, 2), strides=[1, 1, 2, 2], **first),
    ]


def _transposed() -> list[Case]:
    def transposed(what: str, result: Sequence[int], kernel: Sequence[int], image: Sequence[int], **attrs: Any) -> Case:
        attrs = {"strides": [1, 1, 1, 1], "padding": "VALID", **attrs}
        return case(f"Conv2DBackpropInput{what}", Static(list(result)), f(*kernel), f(*image), **attrs)

    return [
        transposed("", (3, 5, 6, 2), (3, 3, 2, 3), (3, 3, 4, 3)),
        transposed("/strides", (2, 6, 8, 3), (3, 2, 3, 5), (2, 3, 4, 5), strides=[1, 2, 2, 1], padding="SAME"),
        transposed("/one channel", (3, 4, 4, 1), (2, 2, 1, 2), (3, 2, 2, 2), strides=[1, 2, 2, 1]),
    ]


def _pools() -> list[Case]:
    first, cases = {"data_format": "NCHW"}, []
    for kind in ("MaxPool", "AvgPool"):
        window = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}
        three = {"ksize": [1, 3, 3, 1], "strides": [1, 2, 2, 1], "padding": "SAME"}
        swapped = {"ksize": [1, 1, 2, 2], "strides": [1, 1, 2, 2], "padding": "VALID", **first}
        overlapping = {**swapped, "ksize": [1, 1, 3, 3], "padding": "SAME"}
        cases += [
            case(kind, f(3, 6, 4, 5), **window),
            case(f"{kind}/SAME", f(3, 5, 4, 3), **{**window, "padding": "SAME"}),
            case(f"{kind}/overlapping", f(3, 5, 4, 3), **{**window, "strides": [1, 1, 1, 1]}),
            case(f"{kind}/overlapping, SAME, strides", f(2, 7, 8, 2), **three),
            case(f"{kind}/wide, SAME", f(2, 5, 6, 2), **{**three, "ksize": [1, 5, 4, 1], "strides": [1, 1, 1, 1]}),
            case(f"{kind}/rest left over", f(3, 5, 7, 2), **window),
            case(f"{kind}/gaps between windows", f(3, 9, 6, 2), **{**window, "strides": [1, 3, 3, 1]}),
            case(f"{kind}/channels first", f(3, 5, 6, 4), **swapped),
            case(f"{kind}/channels first, SAME", f(2, 3, 5, 6), **overlapping),
        ]
    shifted = {"explicit_paddings": [0, 0, 1, 0, 1, 0, 0, 0], "padding": "EXPLICIT"}
    return [
        *cases,
        case("MaxPool/ties", ties(3, 6, 4, 5), ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="VALID"),
        case("MaxPool/ties, overlapping", ties(2, 6, 5, 2), ksize=[1, 3, 3, 1], strides=[1, 1, 1, 1], padding="SAME"),
        case("MaxPool/below zero, SAME", f(2, 5, 5, 2, low=-9, high=-1), ksize=[1, 3, 3, 1], strides=[1, 2, 2, 1],
             padding="SAME"),
        case("MaxPool/whole numbers", ints(2, 5, 5, 2, low=-9, high=-1, dtype=np.int32), ksize=[1, 3, 3, 1],
             strides=[1, 2, 2, 1], padding="SAME"),
        case("MaxPool/shifted by paddings", f(3, 6, 4, 2), ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], **shifted),
        case("MaxPool/over channels", f(3, 2, 4, 6), ksize=[1, 1, 1, 2], strides=[1, 1, 1, 2], padding="VALID",
             differentiable=False),
    ]


def _volumes() -> list[Case]:
    cases = [
        case("Conv3D", f(2, 3, 4, 5, 2), f(2, 3, 3, 2, 3), strides=[1, 1, 1, 1, 1], padding="SAME"),
        case("Conv3D/strides", f(2, 5, 5, 3, 2), f(3, 3, 2, 2, 2), strides=[1, 2, 2, 1, 1], padding="VALID"),
    ]
    for kind in ("MaxPool3D", "AvgPool3D"):
        window: dict[str, Any] = {"ksize": [1, 2, 3, 2, 1], "strides": [1, 2, 2, 1, 1]}
        # There are only 32-bit kernels; windows of 12 elements are summed, twice where they overlap.
        window |= {"tolerance": 64 * float(np.finfo(np.float32).eps)}
        cases += [
            case(kind, f32(2, 4, 5, 4, 2), **window, padding="SAME"),
            case(f"{kind}/VALID", f32(2, 4, 5, 3, 2), **window, padding="VALID"),
        ]
    return cases


def _batch_norms() -> list[Case]:
    """There are only 32-bit kernels. An error of 64 roundings is what a sum over some ten elements, a square root and a
    division may make; one device's own distance from 64-bit numbers is held to the same in a test."""
    cases = []
    tolerance = 64 * float(np.finfo(np.float32).eps)
    image, scale, offset, empty = f32(3, 2, 5, 3), f32(3, low=0.5), f32(3), f32(0)
    mean, variance = f32(3), f32(3, low=0.5)
    first = f32(2, 3, 5, 3)
    for kind in ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"):
        cases += [
            case(f"{kind}/training", image, scale, offset, empty, empty, is_training=True, tolerance=tolerance),
            case(f"{kind}/inference", image, scale, offset, mean, variance, is_training=False, tolerance=tolerance),
        ]
    shared = {"tolerance": tolerance, "data_format": "NCHW"}
    cases += [
        case("FusedBatchNormV3/channels first", first, scale, offset, empty, empty, is_training=True, **shared),
        case("FusedBatchNormV3/channels first, inference", first, scale, offset, mean, variance, is_training=False,
             **shared),
        case("FusedBatchNormV3/running averages", image, scale, offset, mean, variance, is_training=True,
             exponential_avg_factor=0.25, tolerance=tolerance),
    ]
    return cases
