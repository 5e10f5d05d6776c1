"""The families of ``keras.applications`` with fewer and narrower blocks, by the constructors that Keras makes its own with.

Every kind of block is there, so every kind of operator is. NASNet's cells can't be made smaller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras.src.applications import convnext, densenet, efficientnet, efficientnet_v2, mobilenet_v3, resnet

Make = Callable[..., keras.Model]
"""Takes what all applications take: ``weights``, ``input_shape``, ``classes``, ``classifier_activation``."""


def resnet_v1(**options: Any) -> keras.Model:
    def stack(x: Any) -> Any:
        x = resnet.stack_residual_blocks_v1(x, 4, 2, stride1=1, name="conv2")
        return resnet.stack_residual_blocks_v1(x, 6, 1, name="conv3")

    return resnet.ResNet(stack, preact=False, use_bias=True, **options)


def resnet_v2(**options: Any) -> keras.Model:
    def stack(x: Any) -> Any:
        x = resnet.stack_residual_blocks_v2(x, 4, 2, name="conv2")
        return resnet.stack_residual_blocks_v2(x, 6, 2, stride1=1, name="conv3")

    return resnet.ResNet(stack, preact=True, use_bias=True, **options)


def densenet_121(**options: Any) -> keras.Model:
    return densenet.DenseNet([1, 2, 1, 1], **options)


def mobilenet_v3_small(**options: Any) -> keras.Model:
    def stack(x: Any, kernel: int, activation: Any, se_ratio: float) -> Any:
        x = mobilenet_v3._inverted_res_block(x, 1, 8, 3, 2, se_ratio, mobilenet_v3.relu, 0)
        x = mobilenet_v3._inverted_res_block(x, 2, 8, kernel, 1, se_ratio, activation, 1)
        return mobilenet_v3._inverted_res_block(x, 2, 8, kernel, 1, None, activation, 2)

    return mobilenet_v3.MobileNetV3(stack, 16, **options)


def efficientnet_b0(**options: Any) -> keras.Model:
    return efficientnet.EfficientNet(0.25, 1.0, 32, blocks_args=efficientnet.DEFAULT_BLOCKS_ARGS[:2], **options)


def efficientnet_v2_b0(**options: Any) -> keras.Model:
    kinds = efficientnet_v2.DEFAULT_BLOCKS_ARGS["efficientnetv2-b0"]
    return efficientnet_v2.EfficientNetV2(0.25, 0.5, 32, blocks_args=[kinds[1], kinds[3]], **options)


def convnext_tiny(**options: Any) -> keras.Model:
    return convnext.ConvNeXt([1, 2, 1, 1], [4, 6, 6, 8], drop_path_rate=0.2, **options)
