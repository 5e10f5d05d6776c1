"""Keras's layers that prepare images, sounds and columns, as :mod:`.catalog` has the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from random_models.menus import Shape, layer

from keras_layers.catalog import default, on, single, whole
from keras_layers.entries import Entry

_FIRST = {"data_format": "channels_first"}
_BYTES = {"value_range": (0, 255)}
_NARROW = {"value_range": (20, 200), "seed": 1}


def pixels(name: str, shape: Shape = (3, 4, 3), **options: Any) -> Entry:
    """An entry of images."""
    return Entry(layer(name, **options), (shape,), dtype="pixel")


def only_trained(entry: Entry) -> Entry:
    """An entry whose results have another shape when it predicts."""
    return replace(entry, predicts=False)


COLORS = (
    pixels("AutoContrast", value_range=(20, 200)),
    pixels("ContrastLimitedAdaptiveHistogramEqualization", (4, 4, 3), tile_grid_size=(2, 2), **_BYTES),
    pixels("ContrastLimitedAdaptiveHistogramEqualization", (3, 4, 4), tile_grid_size=(2, 2), **_BYTES, **_FIRST),
    # By itself its symbolic result is its input, of which Keras makes no model.
    pixels("Pipeline", (2, 2, 3), layers=[layer("Equalization", **_BYTES)]),
    pixels("Pipeline", (3, 2, 2), layers=[layer("Equalization", **_BYTES, **_FIRST)]),
    pixels("RandomBrightness", factor=0.75, **_NARROW),
    pixels("RandomColorDegeneration", factor=0.75, value_range=(0, 1), seed=1),
    pixels(
        "RandomColorJitter", brightness_factor=0.2, contrast_factor=0.2, saturation_factor=0.2, hue_factor=0.2, **_NARROW
    ),
    pixels("RandomContrast", factor=0.75, seed=1, **_BYTES),
    pixels("RandomContrast", (3, 4, 4), factor=0.75, seed=1, **_BYTES, **_FIRST),
    pixels("RandomGrayscale", (2, 2, 3), factor=0.5),
    pixels("RandomGrayscale", (3, 2, 2), factor=0.5, **_FIRST),
    pixels("RandomHue", factor=0.75, **_NARROW),
    pixels("RandomInvert", factor=0.75, **_NARROW),
    pixels("RandomPosterization", factor=1, **_NARROW),
    pixels("RandomSaturation", factor=0.75, seed=1),
    pixels("RandomSharpness", factor=0.75, seed=1),
    pixels("Solarization", addition_factor=0.75, threshold_factor=(0, 1), **_NARROW),
)

PLACES = (
    pixels("CenterCrop", (12, 12, 3), height=6, width=6),
    pixels("CenterCrop", (3, 13, 13), height=7, width=7, **_FIRST),
    default(only_trained(pixels("RandomCrop", (3, 4, 3), height=2, width=2))),
    only_trained(pixels("RandomCrop", (3, 3, 4), height=2, width=2, **_FIRST)),
    only_trained(pixels("RandomCrop", (8, 16, 3), height=8, width=8)),
    only_trained(pixels("RandomCrop", (8, 16, 3), height=10, width=8)),
    pixels("RandomElasticTransform", factor=1.0, scale=0.5, fill_mode="reflect", seed=1, **_BYTES),
    pixels("RandomErasing", factor=1.0, scale=0.5, fill_value=0, seed=1, **_BYTES),
    pixels("RandomFlip", (3, 4, 3), mode="horizontal"),
    pixels("RandomFlip", (3, 4, 3), mode="vertical"),
    pixels("RandomFlip", (3, 4, 3), mode="horizontal_and_vertical"),
    pixels("RandomGaussianBlur", factor=1.0, kernel_size=3, sigma=0, seed=1, **_BYTES),
    pixels("RandomPerspective", factor=1.0, scale=0.5, interpolation="bilinear", fill_value=0, seed=1),
    default(single(pixels("RandomRotation", (3, 4, 3), factor=(-0.2, 0.4)))),
    single(pixels("RandomRotation", (5, 5, 1), factor=-0.4, fill_mode="constant", interpolation="nearest")),
    pixels("RandomShear", x_factor=(0.5, 1), y_factor=(0.5, 1), fill_mode="reflect", seed=1),
    pixels("RandomTranslation", (5, 5, 1), height_factor=(-0.2, -0.2), width_factor=0.0),
    pixels("RandomTranslation", (1, 5, 5), height_factor=0.0, width_factor=(-0.2, -0.2), fill_mode="constant", **_FIRST),
    pixels("RandomTranslation", (3, 4, 3), height_factor=(-0.5, 0.4), width_factor=(0.2, 0.3)),
    pixels("RandomZoom", (5, 5, 1), height_factor=(-0.5, -0.5), width_factor=(-0.5, -0.5), fill_mode="constant"),
    pixels("RandomZoom", (3, 4, 3), height_factor=(0.4, 0.5), width_factor=(0.2, 0.3)),
    pixels("Rescaling", (3, 4, 3), scale=1.0 / 255, offset=0.5),
    single(pixels("Resizing", (6, 8, 3), height=4, width=4)),
    pixels("Resizing", (6, 8, 3), height=4, width=5, interpolation="nearest", crop_to_aspect_ratio=True),
    single(pixels("Resizing", (3, 4, 3), height=6, width=6, interpolation="bicubic", pad_to_aspect_ratio=True)),
    single(pixels("Resizing", (3, 6, 8), height=4, width=4, **_FIRST)),
)

SEVERAL = (
    pixels("CutMix", factor=1.0, seed=1),
    pixels("MixUp", alpha=0.2),
    replace(
        # What its gradient divides by may be zero.
        single(pixels("RandAugment", num_ops=2, factor=1, interpolation="nearest", seed=1, **_BYTES)),
        dtype="image",
    ),
    pixels("Pipeline", layers=[layer("AutoContrast", **_BYTES), layer("RandomBrightness", factor=0.1, seed=1, **_BYTES)]),
)

SOUNDS = (
    single(on((640,), "MelSpectrogram", num_mel_bins=8, sampling_rate=800, sequence_stride=128, fft_length=128)),
    on((160, 1), "STFTSpectrogram", mode="stft", frame_length=50, frame_step=25, fft_length=64),
    on((160, 1), "STFTSpectrogram", mode="real", frame_length=15, frame_step=7, fft_length=32),
    on((160, 1), "STFTSpectrogram", mode="imag", frame_length=50, frame_step=43, fft_length=64, padding="same"),
    on((160, 3), "STFTSpectrogram", frame_length=15, frame_step=10, fft_length=32, trainable=False, padding="same"),
)

_STATISTICS = {"axis": -1, "mean": np.array([0.5, 0.2, -0.1]), "variance": np.array([0.1, 0.2, 0.3])}
COLUMNS = (
    on((3,), "Normalization", **_STATISTICS),
    on((3,), "Normalization", invert=True, **_STATISTICS),
    on((3,), "Discretization", bin_boundaries=[-0.5, 0.0, 0.5]),
    on((3,), "Discretization", bin_boundaries=[-0.5, 0.0, 0.5], output_mode="multi_hot"),
    whole((3,), "CategoryEncoding", num_tokens=4, output_mode="multi_hot"),
    whole((3,), "CategoryEncoding", num_tokens=4, output_mode="count"),
    whole((1,), "CategoryEncoding", num_tokens=4, output_mode="one_hot"),
    whole((3,), "Hashing", num_bins=3),
    whole((1,), "HashedCrossing", n=2, num_bins=3, output_mode="int"),
    default(whole((1,), "HashedCrossing", n=2, num_bins=4, output_mode="one_hot")),
    whole((3,), "IntegerLookup", "int64", vocabulary=[0, 1, 3]),
    whole((3,), "IntegerLookup", "int64", vocabulary=[0, 1, 3], output_mode="multi_hot"),
)
