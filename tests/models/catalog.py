"""Models as users have them: the families of ``keras.applications``, and Transformers and RNNs of Keras layers.

All are made for whatever float type Keras is set to, and small: few classes, small images, narrow where the constructor
allows it, with every kind of layer that the full-size ones have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import numpy as np

from models import sequences, shallow
from models.sequences import Size

CLASSES = 5
Batch = tuple[list[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Entry:
    """A model with what it is trained on.

    Attributes:
        make: makes the model, with weights drawn again.
        batch: arrays for its inputs, and labels, from a seed.
        batch_size: samples in it.
    """

    make: Callable[[], keras.Model]
    batch: Callable[[int], Batch]
    batch_size: int

    @property
    def loss(self) -> keras.losses.Loss:
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def images(make: Callable[[], keras.Model], size: int, batch_size: int, classes: int) -> Entry:
    """A model that classifies images of ``size`` times ``size``."""

    def batch(seed: int) -> Batch:
        rng = np.random.default_rng([seed, size])
        values = rng.uniform(0.0, 255.0, (batch_size, size, size, 3)).astype(keras.config.floatx())
        return [values], rng.integers(0, classes, batch_size)

    return Entry(make, batch, batch_size)


def application(
    constructor: str | Callable[..., keras.Model], size: int, batch_size: int = 4, classes: int = CLASSES, **options: Any
) -> Entry:
    """A model of ``keras.applications``, or of a constructor that takes the same, with random weights."""

    def make() -> keras.Model:
        made = getattr(keras.applications, constructor) if isinstance(constructor, str) else constructor
        return made(weights=None, input_shape=(size, size, 3), classes=classes, classifier_activation=None, **options)

    return images(make, size, batch_size, classes)


def words(make: Callable[[Size], keras.Model], size: Size, batch_size: int, n_inputs: int = 1) -> Entry:
    """A model over sequences of words that says a word for each; 0 is padding."""

    def batch(seed: int) -> Batch:
        rng = np.random.default_rng([seed, size.length])
        drawn = rng.integers(1, size.vocabulary, (n_inputs + 1, batch_size, size.length))
        drawn[:n_inputs, 0, size.length - 1] = 0
        return list(drawn[:n_inputs].astype(np.int32)), drawn[-1]

    return Entry(partial(make, size), batch, batch_size)


def segments(make: Callable[[Size], keras.Model], size: Size, batch_size: int) -> Entry:
    """A model over words of two segments that says which of two classes a sequence is."""

    def batch(seed: int) -> Batch:
        rng = np.random.default_rng([seed, size.length])
        drawn = rng.integers(1, size.vocabulary, (batch_size, size.length), np.int32)
        drawn[0, size.length - 2 :] = 0
        second = np.arange(size.length) >= rng.integers(1, size.length, (batch_size, 1))
        return [drawn, second.astype(np.int32)], rng.integers(0, 2, batch_size)

    return Entry(partial(make, size), batch, batch_size)


SHALLOW: dict[str, Entry] = {
    "resnet": application(shallow.resnet_v1, 32),
    "resnet_v2": application(shallow.resnet_v2, 32),
    "densenet": application(shallow.densenet_121, 32),
    "mobilenet_v3": application(shallow.mobilenet_v3_small, 32),
    "efficientnet": application(shallow.efficientnet_b0, 32),
    "efficientnet_v2": application(shallow.efficientnet_v2_b0, 32),
    "convnext": application(shallow.convnext_tiny, 32),
}
# The largest first, so that two processes which share them end together. On images this small the last normalisations are
# over the batch alone. Of MobileNetV2, over 4 samples a last bit of each weight comes to 3e-8 of a gradient in the second
# step, over 8 to 2e-11; of InceptionV3, over 8 to 7e-10, over 16 to 1e-10 (conditioning.py).
APPLICATIONS: dict[str, Entry] = {
    "NASNetMobile": application("NASNetMobile", 32, 8),
    "DenseNet121": application("DenseNet121", 32, 8),
    "EfficientNetV2B0": application("EfficientNetV2B0", 32, 8),
    "EfficientNetB0": application("EfficientNetB0", 32, 8),
    "InceptionV3": application("InceptionV3", 75, 16),
    "ResNet50": application("ResNet50", 32, 8),
    "ResNet50V2": application("ResNet50V2", 32, 8),
    "Xception": application("Xception", 71),
    "MobileNetV2": application("MobileNetV2", 32, 8, alpha=0.35),
    "MobileNetV3Small": application("MobileNetV3Small", 32, 8, alpha=0.75),
    "ConvNeXtTiny": application("ConvNeXtTiny", 32),
    "MobileNet": application("MobileNet", 32, 8, alpha=0.25),
    "VGG16": application("VGG16", 32),
}


def of_sequences(depth: int) -> dict[str, Entry]:
    """Transformers and recurrent networks of so many layers."""
    size = Size(length=6, vocabulary=11, width=8, depth=depth, heads=4)
    return {
        "bert": segments(sequences.bert, size, 4),
        "fnet": words(sequences.fnet, size, 4),
        "gpt": words(sequences.gpt, size, 4),
        "gpt_untied": words(partial(sequences.gpt, tied=False), size, 4),
        "vit": images(lambda: sequences.vit(12, 4, size, CLASSES), 12, 4, CLASSES),
        "encoder_decoder": words(sequences.encoder_decoder, size, 4, n_inputs=2),
        "lstm": words(sequences.lstm, size, 4),
        "gru": words(sequences.gru, size, 4),
        "gru_unrolled": words(partial(sequences.gru, unroll=True), size, 4),
    }


SEQUENCES = of_sequences(depth=2)
ONE_LAYER = {f"{name}_of_one_layer": entry for name, entry in of_sequences(depth=1).items()}
SMALL = {**SHALLOW, **ONE_LAYER, **APPLICATIONS, **SEQUENCES}
