"""Inception-v3 (Szegedy et al., "Rethinking the Inception architecture"), without its auxiliary classifier."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from .layers import dense, images, mean_loss, model, normalised_convolution, v1

Kernel = int | tuple[int, int]


class _Block:
    """One Inception module: branches from one tensor, concatenated."""

    def __init__(self, x: tf.Tensor, name: str, divisor: int) -> None:
        self.x, self.name, self.divisor = x, name, divisor
        self.branches: list[tf.Tensor] = []
        self.n_layers = 0

    def convolved(self, x: tf.Tensor, *layers: tuple[Kernel, int], stride: int = 1) -> tf.Tensor:
        """Return convolutions of (kernel, width), one after the other; if there is a stride, only the last has it, unpadded.
        """
        for number, (kernel, width) in enumerate(layers, 1):
            last = stride > 1 and number == len(layers)
            width = max(1, width // self.divisor)
            self.n_layers += 1
            with v1.variable_scope(self.name):
                x = normalised_convolution(
                    x, kernel, width, f"conv_{self.n_layers}", stride if last else 1, "VALID" if last else "SAME"
                )
        return x

    def branch(self, *layers: tuple[Kernel, int], stride: int = 1) -> None:
        self.branches.append(self.convolved(self.x, *layers, stride=stride))

    def forked(self, *layers: tuple[Kernel, int]) -> None:
        """Add a branch that ends in a 1 x 3 and a 3 x 1 convolution of 384 channels side by side."""
        x = self.convolved(self.x, *layers)
        self.branches += [self.convolved(x, ((1, 3), 384)), self.convolved(x, ((3, 1), 384))]

    def pooled(self, width: int) -> None:
        self.branches.append(self.convolved(tf.nn.avg_pool2d(self.x, 3, 1, "SAME"), (1, width)))

    def joined(self) -> tf.Tensor:
        return tf.concat(self.branches, -1)


@model
def inception_v3(
    batch: int = 256, image: int = 299, repeats: Sequence[int] = (3, 4, 2), divisor: int = 1, classes: int = 1000
) -> tf.Tensor:
    """Inception-v3, 23.8 million parameters.

    Args:
        repeats: modules at each of the three resolutions.
        divisor: of all widths, for small models.
    """
    x, labels = images(batch, image)
    stem: list[tuple[int, int, int, str] | None] = [
        (3, 32, 2, "VALID"), (3, 32, 1, "VALID"), (3, 64, 1, "SAME"), None, (1, 80, 1, "VALID"), (3, 192, 1, "VALID"), None,
    ]  # fmt: skip
    for number, layer in enumerate(stem, 1):
        if layer is None:
            x = tf.nn.max_pool2d(x, 3, 2, "VALID")
        else:
            kernel, width, stride, padding = layer
            x = normalised_convolution(x, kernel, max(1, width // divisor), f"stem_{number}", stride, padding)
    for number in range(repeats[0]):
        x = _fine(x, f"fine_{number + 1}", divisor, 32 if number == 0 else 64)
    x = _reduced(x, "reduction_1", divisor, ((3, 384),), ((1, 64), (3, 96), (3, 96)))
    for number in range(repeats[1]):
        x = _factorised(x, f"factorised_{number + 1}", divisor, (128, 160, 160, 192)[min(number, 3)])
    kernels: tuple[tuple[Kernel, int], ...] = ((1, 192), ((1, 7), 192), ((7, 1), 192), (3, 192))
    x = _reduced(x, "reduction_2", divisor, ((1, 192), (3, 320)), kernels)
    for number in range(repeats[2]):
        x = _coarse(x, f"coarse_{number + 1}", divisor)
    return mean_loss(dense(tf.reduce_mean(x, [1, 2]), classes, "logits"), labels)


def _fine(x: tf.Tensor, name: str, divisor: int, pooled: int) -> tf.Tensor:
    block = _Block(x, name, divisor)
    block.branch((1, 64))
    block.branch((1, 48), (5, 64))
    block.branch((1, 64), (3, 96), (3, 96))
    block.pooled(pooled)
    return block.joined()


def _factorised(x: tf.Tensor, name: str, divisor: int, inner: int) -> tf.Tensor:
    """Return a module with convolutions of 7 x 7 as 1 x 7 and 7 x 1."""
    block = _Block(x, name, divisor)
    wide, high = (1, 7), (7, 1)
    block.branch((1, 192))
    block.branch((1, inner), (wide, inner), (high, 192))
    block.branch((1, inner), (high, inner), (wide, inner), (high, inner), (wide, 192))
    block.pooled(192)
    return block.joined()


def _coarse(x: tf.Tensor, name: str, divisor: int) -> tf.Tensor:
    block = _Block(x, name, divisor)
    block.branch((1, 320))
    block.forked((1, 384))
    block.forked((1, 448), (3, 384))
    block.pooled(192)
    return block.joined()


def _reduced(x: tf.Tensor, name: str, divisor: int, *branches: tuple[tuple[Kernel, int], ...]) -> tf.Tensor:
    """Return a module of half the resolution: branches that end with a stride, and a pooled one."""
    block = _Block(x, name, divisor)
    for layers in branches:
        block.branch(*layers, stride=2)
    block.branches.append(tf.nn.max_pool2d(x, 3, 2, "VALID"))
    return block.joined()
