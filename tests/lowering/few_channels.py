"""Emit all kinds of convolutions over few channels in float32; compare values and gradients with TensorFlow's in float64.

TensorFlow's own kernels may crash in float32, so this runs in a process of its own: `python few_channels.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import numpy as np
import tensorflow as tf

from tensoropt.frontend.importer import import_graph
from tensoropt.lowering.gradient_overrides import lean_gradient
from tensoropt.lowering.operators import raw_operator

N_RUNS, BATCH, EXTENT, RESULTS = 4, 11, 16, 16
Convolution = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
Case = tuple[str, list[int], list[int], Convolution]


def cases(channels: int, kernel: int, stride: int, padding: str) -> Iterator[Case]:
    """The kinds of convolutions: name, shapes of image and kernel, function."""
    image = [BATCH, EXTENT, EXTENT, channels]
    space = [BATCH, 6, 6, 6, channels]
    filters, steps, wide = [kernel, kernel, channels, RESULTS], [1, stride, stride, 1], EXTENT * stride
    yield "1d", [BATCH, EXTENT, channels], filters[1:], lambda x, w: tf.nn.conv1d(x, w, stride, padding)
    yield "2d", image, filters, lambda x, w: tf.nn.conv2d(x, w, stride, padding)
    yield "3d", space, [kernel, *filters], lambda x, w: tf.nn.conv3d(x, w, [1, *[stride] * 3, 1], padding)
    yield "depthwise", image, [kernel, kernel, channels, 2], lambda x, w: tf.nn.depthwise_conv2d(x, w, steps, padding)
    if stride == 1:
        yield "dilated", image, filters, lambda x, w: tf.nn.convolution(x, w, 1, padding, dilations=2)
    if padding == "SAME":
        padded = [[0, 0], [2, 1], [1, 0], [0, 0]]
        yield "padded", image, filters, lambda x, w: tf.nn.conv2d(x, w, stride, padded)
        size, back = [BATCH, wide, wide, channels], [kernel, kernel, channels, RESULTS]
        yield (
            "transposed", [BATCH, EXTENT, EXTENT, RESULTS], back,
            lambda x, w: tf.nn.conv2d_transpose(x, w, size, stride, padding),
        )
    if channels == 8 and padding == "SAME":  # XLA compiles each for a second
        yield "in groups", image, [kernel, kernel, 4, RESULTS], partial(in_groups, stride=stride)


def in_groups(image: tf.Tensor, kernel: tf.Tensor, stride: int) -> tf.Tensor:
    """A convolution in two groups, whose gradients TensorFlow doesn't have on CPUs: in float64 one by one."""
    if image.dtype == tf.float32:
        return tf.nn.conv2d(image, kernel, stride, "SAME")
    pairs = zip(tf.split(image, 2, -1), tf.split(kernel, 2, -1), strict=True)
    return tf.concat([tf.nn.conv2d(*pair, stride, "SAME") for pair in pairs], -1)


def with_gradients(convolution: Convolution, image: tf.Tensor, kernel: tf.Tensor) -> list[tf.Tensor]:
    """A convolution's result and gradients: as TensorFlow has them in float64, as we emit them in float32."""
    result = convolution(image, kernel)
    gradient = tf.cast(tf.reshape(tf.range(tf.size(result)) % 97 - 40, result.shape), result.dtype)
    if image.dtype == tf.float32:
        values = {image.name: image, kernel.name: kernel}
        for op in import_graph(image.graph, (), targets=[result.op]).operators.values():
            if op.inputs and op.result.name not in values:
                given = [op.statics[i] if tensor is None else values[tensor.name] for i, tensor in enumerate(op.inputs)]
                with lean_gradient(op, frozenset(position for position, _ in op.operands)):
                    values |= zip((tensor.name for tensor in op.outputs), raw_operator(op, given), strict=True)
            elif op.result.name not in values:
                values[op.result.name] = tf.constant(op.statics[0])
        result = values[result.name]
    return [result, *tf.gradients(result, [image, kernel], gradient)]


def run(case: Case, dtype: tf.DType, n_runs: int) -> list[list[np.ndarray]]:
    """The numbers of some runs."""
    _, *shapes, convolution = case
    rng = np.random.default_rng(0)
    function = tf.function(partial(with_gradients, convolution), autograph=False)
    given = [tf.constant(rng.normal(size=shape), dtype) for shape in shapes]
    return [[tensor.numpy() for tensor in function(*given)] for _ in range(n_runs)]


def main() -> None:
    """Compare all; print each before it runs."""
    for channels, kernel, stride, padding in product((1, 3, 8), (1, 2), (1, 2), ("SAME", "VALID")):
        for case in cases(channels, kernel, stride, padding):
            print(case[0], channels, "channels", kernel, "x", kernel, "stride", stride, padding, flush=True)
            (expected,) = run(case, tf.float64, 1)
            for found in run(case, tf.float32, N_RUNS):
                for a, b in zip(found, expected, strict=True):
                    off = np.max(np.abs(a - b)) / np.max(np.abs(b))
                    assert off < 1e-5, f"off by {off}"
    print("all equal")


if __name__ == "__main__":
    main()
