"""Keras's layers with the arguments and the shapes of their own tests (``keras/src/layers/**/*_test.py``), batch apart.

Of the arguments that say the same several times there (croppings, equations) some are left out, of sizes that take long the
extents are smaller, and where a class has no test of this kind there the arguments are ours.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import keras
from random_models.menus import Made, Shape, layer

from keras_layers.entries import Entry


def on(shape: Shape, name: str, *inner: Made, **options: Any) -> Entry:
    """An entry of one input of real numbers."""
    return Entry(layer(name, *inner, **options), (shape,))


def default(entry: Entry) -> Entry:
    """An entry that ``make test`` holds too."""
    return replace(entry, by_default=True)


def single(entry: Entry) -> Entry:
    """An entry in float32: TensorFlow's kernel computes in nothing else, or Keras makes its variables of this type."""
    return replace(entry, floats="float32")


def whole(shape: Shape, name: str, dtype: str = "int32", n: int = 1, **options: Any) -> Entry:
    """An entry of whole numbers."""
    return Entry(layer(name, **options), (shape,) * n, n > 1, dtype)


def pair(first: Shape, second: Shape, name: str, call: dict[str, Any] | None = None, **options: Any) -> Entry:
    """An entry whose inputs are arguments of their own."""
    return Entry(layer(name, **options), (first, second), call=call or {})


def listed(shapes: tuple[Shape, ...], name: str, **options: Any) -> Entry:
    """An entry whose inputs are a list."""
    return Entry(layer(name, **options), shapes, together=True)


def _l2(factor: float = 0.01) -> Made:
    return Made("regularizers.L2", (("l2", factor),))


def _doubled(x: Any) -> Any:
    return keras.ops.concatenate([x, x], axis=-1)


CORE = (
    on((3,), "Dense", units=4, activation="relu", kernel_initializer="random_uniform", use_bias=False),
    on((3, 4), "Dense", units=5, activation="sigmoid", kernel_regularizer="l2", bias_regularizer="l2"),
    single(on((3, 4), "Dense", units=5, activation="sigmoid", kernel_regularizer="l2", lora_rank=2)),
    on((32,), "EinsumDense", equation="ab,b->a", output_shape=(), bias_axes=None),
    on((32,), "EinsumDense", equation="ab,bc->ac", output_shape=64, bias_axes=None),
    single(on((3,), "EinsumDense", equation="ab,bcd->acd", output_shape=(8, 32), bias_axes=None, lora_rank=2)),
    on((3,), "EinsumDense", equation="ab,bcd->acd", output_shape=(8, 32), bias_axes="d"),
    on((1, 2), "EinsumDense", equation="abc,cd->abd", output_shape=(1, 4), bias_axes=None),
    on((1, 2), "EinsumDense", equation="abc,cde->abde", output_shape=(1, 3, 4), bias_axes="e"),
    default(on((7, 2), "EinsumDense", equation="abc,cde->abde", output_shape=(7, 3, 4), bias_axes="be")),
    on((1, 2, 3), "EinsumDense", equation="BFNH,NHD->BFD", output_shape=(1, 4), bias_axes=None),
    on((2, 1), "EinsumDense", equation="ibd,nd->ibn", output_shape=(2, 2), bias_axes=None),
    on((1, 2), "EinsumDense", equation="...c,cde->...de", output_shape=(3, 4), bias_axes="de"),
    on((32, 64), "EinsumDense", equation="...bc,bc->...b", output_shape=(32,), bias_axes=None),
    on((3, 32), "EinsumDense", equation="...b,bc->...c", output_shape=(64,), bias_axes=None),
    on((1, 2, 3), "EinsumDense", equation="bc...,cd->bd...", output_shape=(4,), bias_axes=None),
    on((1, 2), "EinsumDense", equation="bc...,cde->bde...", output_shape=(3, 4), bias_axes="d"),
    on((), "EinsumDense", equation="i,d->id", output_shape=(2,), bias_axes=None),
    whole((), "Embedding", input_dim=4, output_dim=3),
    whole((3,), "Embedding", input_dim=5, output_dim=4),
    whole((3,), "Embedding", "int64", input_dim=5, output_dim=4, mask_zero=True),
    single(whole((3,), "Embedding", input_dim=5, output_dim=4, lora_rank=2)),
    *(
        replace(
            whole((10,), "ReversibleEmbedding", input_dim=100, output_dim=8, tie_weights=tied, logit_soft_cap=50),
            again={"reverse": True},
        )
        for tied in (True, False)
    ),
    on((3,), "Identity"),
    on((3,), "Lambda", function=keras.ops.square),
    on((3,), "Lambda", function=_doubled, output_shape=(6,)),
)

ACTIVATIONS = (
    on((3,), "Activation", activation="relu"),
    on((2,), "Activation", activation="gelu"),
    on((3, 4), "ELU"),
    on((3, 4), "LeakyReLU", negative_slope=1),
    on((3, 4), "LeakyReLU", negative_slope=0.3),
    on((3, 4), "PReLU", alpha_regularizer="L1", alpha_constraint="MaxNorm", shared_axes=1),
    on((3, 4), "ReLU", max_value=10, negative_slope=1, threshold=0.5),
    on((3, 4), "Softmax"),
    on((3, 4), "Softmax", axis=1),
)

_HEADS = {"num_heads": 2, "key_dim": 2}
_WITHOUT = {"value_dim": 4, "use_bias": False, "dropout": 0.5}
_GROUPED = {"num_query_heads": 4, "num_key_value_heads": 2, "head_dim": 2}
ATTENTION = (
    pair((8, 16), (4, 16), "MultiHeadAttention", **_HEADS),
    pair((8, 16), (4, 16), "MultiHeadAttention", **_HEADS, **_WITHOUT),
    pair((8, 16), (4, 16), "MultiHeadAttention", **_HEADS, use_gate=True),
    pair((8, 16), (4, 16), "MultiHeadAttention", **_HEADS, **_WITHOUT, use_gate=True),
    pair((3, 4, 8), (3, 2, 8), "MultiHeadAttention", **_HEADS, attention_axes=(2,)),
    pair((3, 4, 8), (3, 2, 8), "MultiHeadAttention", **_HEADS, attention_axes=(1, 2)),
    pair((5, 3, 4, 8), (5, 3, 2, 8), "MultiHeadAttention", **_HEADS, attention_axes=(2, 3)),
    pair((5, 3, 4, 8), (5, 3, 2, 8), "MultiHeadAttention", **_HEADS, use_gate=True, attention_axes=(2, 3)),
    pair((5, 8), (5, 8), "MultiHeadAttention", {"use_causal_mask": True}, **_HEADS),
    pair((8, 16), (4, 16), "GroupQueryAttention", num_query_heads=2, num_key_value_heads=2, head_dim=2),
    default(pair((8, 16), (4, 16), "GroupQueryAttention", **_GROUPED, dropout=0.5, use_gate=True)),
    pair((8, 16), (4, 16), "GroupQueryAttention", **_GROUPED, use_bias=False),
    listed(((3, 4), (4, 4)), "Attention", score_mode="dot", dropout=0.5),
    listed(((3, 4), (4, 4)), "Attention", score_mode="concat", use_scale=True, dropout=0.5),
    listed(((3, 4), (4, 4)), "AdditiveAttention", use_scale=True, dropout=0.5),
    listed(((3, 4), (4, 4)), "AdditiveAttention", use_scale=False, dropout=0.5),
)

_DILATED = {"filters": 6, "kernel_size": 2, "padding": "same", "dilation_rate": 2}
CONVOLUTIONS = (
    on((5, 4), "Conv1D", filters=5, kernel_size=2),
    on((4, 4), "Conv1D", groups=2, **_DILATED),
    on((4, 4), "Conv1D", groups=2, **{**_DILATED, "padding": "causal"}),
    on((5, 4), "Conv1D", filters=6, kernel_size=2, strides=(2,), groups=2),
    on((5, 5, 4), "Conv2D", filters=5, kernel_size=2),
    on((4, 4, 4), "Conv2D", groups=2, **_DILATED),
    on((5, 5, 4), "Conv2D", filters=6, kernel_size=(2, 2), strides=(2, 1), groups=2),
    single(on((5, 5, 4), "Conv2D", filters=5, kernel_size=3, activation="sigmoid", kernel_regularizer="l2", lora_rank=2)),
    on((5, 5, 5, 4), "Conv3D", filters=5, kernel_size=2),
    on((4, 4, 4, 4), "Conv3D", **_DILATED),
    on((4, 4, 4, 4), "Conv3D", groups=2, **_DILATED),
    on((5, 5, 5, 4), "Conv3D", filters=6, kernel_size=(2, 2, 3), strides=(2, 1, 2)),
    on((5, 5, 5, 4), "Conv3D", filters=6, kernel_size=(2, 2, 3), strides=(2, 1, 2), groups=2),
    on((8, 4), "Conv1DTranspose", filters=5, kernel_size=2, strides=2),
    on((8, 4), "Conv1DTranspose", filters=6, kernel_size=2, strides=3, padding="same", output_padding=2),
    on((8, 4), "Conv1DTranspose", filters=6, kernel_size=(2,), strides=(2,)),
    on((8, 8, 4), "Conv2DTranspose", filters=5, kernel_size=2, strides=2),
    default(on((8, 8, 4), "Conv2DTranspose", filters=6, kernel_size=2, strides=3, padding="same", output_padding=2)),
    on((4, 4, 2), "Conv2DTranspose", filters=2, kernel_size=(7, 7), strides=(16, 16)),
    on((4, 4, 4, 4), "Conv3DTranspose", filters=5, kernel_size=2, strides=2),
    on((4, 4, 4, 4), "Conv3DTranspose", filters=6, kernel_size=2, strides=3, padding="same", output_padding=2),
    on((4, 4, 4, 4), "Conv3DTranspose", filters=6, kernel_size=(2, 2, 3)),
    on((5, 4), "DepthwiseConv1D", depth_multiplier=5, kernel_size=2),
    on((4, 4), "DepthwiseConv1D", depth_multiplier=6, kernel_size=2, padding="same", dilation_rate=(2,)),
    on((5, 4), "DepthwiseConv1D", depth_multiplier=6, kernel_size=2, strides=(2,)),
    on((5, 5, 4), "DepthwiseConv2D", depth_multiplier=5, kernel_size=2),
    on((4, 4, 4), "DepthwiseConv2D", depth_multiplier=6, kernel_size=2, padding="same", dilation_rate=(2, 2)),
    on((5, 5, 4), "DepthwiseConv2D", depth_multiplier=6, kernel_size=(2, 2), strides=(2, 2)),
    on((5, 4), "SeparableConv1D", depth_multiplier=5, filters=5, kernel_size=2),
    on((4, 4), "SeparableConv1D", depth_multiplier=6, filters=6, kernel_size=2, padding="same", dilation_rate=(2,)),
    on((5, 4), "SeparableConv1D", depth_multiplier=6, filters=6, kernel_size=2, strides=(2,)),
    on((5, 5, 4), "SeparableConv2D", depth_multiplier=5, filters=5, kernel_size=2),
    on((4, 4, 4), "SeparableConv2D", depth_multiplier=6, filters=6, kernel_size=2, padding="same", dilation_rate=(2, 2)),
    on((5, 5, 4), "SeparableConv2D", depth_multiplier=6, filters=6, kernel_size=(2, 2), strides=(2, 2)),
)

_TWO = ((4, 5), (4, 5))
MERGING = (
    listed(_TWO, "Add"), listed(_TWO, "Average"), listed(_TWO, "Concatenate", axis=-1), listed(_TWO, "Maximum"),
    listed(_TWO, "Minimum"), listed(_TWO, "Multiply"), listed(_TWO, "Subtract"),
    listed(((4,), (4,)), "Dot", axes=-1), listed(_TWO, "Dot", axes=-1),
    listed(_TWO, "Dot", axes=(2, 2), normalize=True),
)  # fmt: skip

NORMALIZATION = (
    on((3,), "BatchNormalization"),
    on((3,), "BatchNormalization", center=False, scale=False),
    on((4, 4, 3), "BatchNormalization", beta_regularizer="l2", gamma_regularizer="l2"),
    default(on((3,), "BatchNormalization", renorm=True)),
    on((4, 4, 3), "BatchNormalization", renorm=True, renorm_clipping={"rmax": 3.0, "rmin": 0.3, "dmax": 5.0}),
    on((4, 32), "GroupNormalization", gamma_regularizer=_l2(), beta_regularizer=_l2()),
    on((4, 4), "GroupNormalization", groups=4, gamma_constraint=Made("constraints.UnitNorm"), beta_constraint="unit_norm"),
    on((4, 2), "LayerNormalization", gamma_regularizer=_l2(), beta_regularizer=_l2()),
    on((4, 2), "LayerNormalization", gamma_initializer="ones", beta_initializer="ones"),
    on((3,), "LayerNormalization", scale=False, center=False),
    on((3,), "LayerNormalization", rms_scaling=True),
    on((8, 8, 3), "LayerNormalization", axis=(-3, -2, -1)),
    on((2,), "RMSNormalization"),
    on((2,), "RMSNormalization", axis=-1),
    default(on((3, 4), "SpectralNormalization", layer("Dense", units=2))),
    on((4, 4, 3), "SpectralNormalization", layer("Conv2D", filters=2, kernel_size=2), power_iterations=2),
    on((3,), "UnitNormalization", axis=-1),
    on((3, 3), "UnitNormalization", axis=(1, 2)),
)


def _pooling(kind: str) -> tuple[Entry, ...]:
    """Average or maximum over windows, over everything, and to a given number of windows."""
    first = {"data_format": "channels_first"}
    shapes = {1: (5, 4), 2: (5, 6, 4), 3: (5, 6, 5, 4)}
    entries = [
        on((5, 4), f"{kind}Pooling1D", pool_size=2, strides=1),
        on((5, 4), f"{kind}Pooling1D", pool_size=2, strides=1, padding="same", **first),
        on((5, 4), f"{kind}Pooling1D", pool_size=(2,), strides=(2,)),
        on((5, 5, 4), f"{kind}Pooling2D", pool_size=2, strides=1),
        on((5, 5, 4), f"{kind}Pooling2D", pool_size=2, strides=1, padding="same", **first),
        on((5, 5, 4), f"{kind}Pooling2D", pool_size=(2, 3), strides=(2, 2)),
        single(on((5, 5, 5, 4), f"{kind}Pooling3D", pool_size=2, strides=1)),
        single(on((5, 5, 5, 4), f"{kind}Pooling3D", pool_size=2, strides=1, padding="same", **first)),
        single(on((5, 5, 5, 4), f"{kind}Pooling3D", pool_size=(2, 3, 2), strides=(2, 2, 1))),
    ]
    for rank, shape in shapes.items():
        name = f"Global{'Max' if kind == 'Max' else 'Average'}Pooling{rank}D"
        entries += [on(shape, name), on(shape, name, keepdims=True), on(shape, name, **first)]
        adaptive = [
            on(shape, f"Adaptive{kind}Pooling{rank}D", output_size=2),
            on(shape, f"Adaptive{kind}Pooling{rank}D", output_size=3, **first),
        ]
        entries += map(single, adaptive) if rank == 3 else adaptive
    return tuple(entries)


POOLING = (*_pooling("Average"), *_pooling("Max"))

REGULARIZATION = (
    on((3,), "ActivityRegularization", l1=0.1, l2=0.2),
    on((3,), "AlphaDropout", rate=0.2),
    on((3, 2), "AlphaDropout", rate=0.2, noise_shape=(None, 1, 2)),
    on((3,), "Dropout", rate=0.2),
    on((3, 2), "Dropout", rate=0.2, noise_shape=(None, 1, 2)),
    on((3,), "GaussianDropout", rate=0.2),
    on((3,), "GaussianNoise", stddev=0.2),
    on((3, 4), "SpatialDropout1D", rate=0.5),
    on((3, 4, 5), "SpatialDropout2D", rate=0.5),
    default(on((3, 4, 5), "SpatialDropout2D", rate=0.5, data_format="channels_first")),
    on((4, 4, 4, 5), "SpatialDropout3D", rate=0.5),
    on((4, 4, 4, 5), "SpatialDropout3D", rate=0.5, data_format="channels_first"),
)

_FIRST = {"data_format": "channels_first"}
RESHAPING = (
    on((5, 7), "Cropping1D", cropping=(1, 2)),
    on((5, 7), "Cropping1D", cropping=(0, 1)),
    on((5, 7), "Cropping1D", cropping=1),
    on((7, 9, 5), "Cropping2D", cropping=((1, 2), (3, 4))),
    on((5, 7, 9), "Cropping2D", cropping=((0, 2), (0, 4)), **_FIRST),
    on((7, 9, 5), "Cropping2D", cropping=((1, 0), (3, 0))),
    on((7, 9, 5), "Cropping2D", cropping=2),
    on((7, 9, 13, 5), "Cropping3D", cropping=((1, 2), (3, 4), (5, 6))),
    on((5, 7, 9, 13), "Cropping3D", cropping=((0, 2), (0, 4), (0, 6)), **_FIRST),
    on((7, 9, 13, 5), "Cropping3D", cropping=2),
    on((3, 5), "Flatten"),
    on((3, 5, 2), "Flatten", **_FIRST),
    on((3, 5, 5), "Permute", dims=(3, 1, 2)),
    on((5,), "RepeatVector", n=3),
    on((2, 4), "Reshape", target_shape=(8, 1)),
    on((2, 4), "Reshape", target_shape=(-1, 1)),
    on((2, 4), "Reshape", target_shape=(-1,)),
    on((2, 4), "Reshape", target_shape=(1, -1)),
    on((8,), "Reshape", target_shape=(2, 4)),
    on((5, 4), "UpSampling1D", size=2),
    on((5, 6, 2), "UpSampling2D", size=(2, 2)),
    on((2, 5, 6), "UpSampling2D", size=(2, 2), **_FIRST),
    single(on((5, 6, 2), "UpSampling2D", size=(2, 2), interpolation="bilinear")),
    single(on((2, 5, 6), "UpSampling2D", size=(2, 2), interpolation="bilinear", **_FIRST)),
    single(on((5, 6, 2), "UpSampling2D", size=(2, 3), interpolation="bicubic")),
    on((3, 4, 5, 2), "UpSampling3D", size=(2, 2, 2)),
    on((2, 3, 4, 5), "UpSampling3D", size=(2, 2, 2), **_FIRST),
    on((5, 4), "ZeroPadding1D", padding=(1, 2)),
    on((5, 4), "ZeroPadding1D", padding=2, **_FIRST),
    on((5, 4, 2), "ZeroPadding2D", padding=((1, 2), (3, 4))),
    on((2, 5, 4), "ZeroPadding2D", padding=(1, 2), **_FIRST),
    on((3, 4, 3, 2), "ZeroPadding3D", padding=((1, 2), (3, 4), (0, 2))),
    on((2, 3, 4, 3), "ZeroPadding3D", padding=1, **_FIRST),
)

_REGULARIZED = {
    "units": 3, "return_sequences": True, "bias_regularizer": "l1", "kernel_regularizer": "l2",
    "recurrent_regularizer": "l2",
}  # fmt: skip


def _recurrent(name: str) -> tuple[Entry, ...]:
    cells = [layer(f"{name}Cell", units=units) for units in (3, 4, 5)]
    return (
        on((2, 4), name, **_REGULARIZED),
        on((2, 4), name, units=3, dropout=0.5),
        on((2, 4), name, units=3, dropout=0.5, recurrent_dropout=0.5),
        on((2, 4), "RNN", layer("StackedRNNCells", cells=cells), return_sequences=True),
        on((3, 4), name, units=3, go_backwards=True, return_state=True),
    )


def _convolved(rank: int) -> tuple[Entry, ...]:
    def sized(extent: int) -> Shape:
        return (2, *[extent] * rank, 3)

    name, extent = f"ConvLSTM{rank}D", 5 if rank == 3 else 8
    return (
        on(sized(extent), name, filters=5, kernel_size=3, return_sequences=True),
        on(sized(extent), name, filters=5, kernel_size=3, recurrent_dropout=0.5),
        on(sized(4), name, filters=5, kernel_size=3, padding="same"),
    )


RECURRENT = (
    *_recurrent("SimpleRNN"),
    *_recurrent("GRU"),
    *_recurrent("LSTM"),
    *_convolved(1),
    *_convolved(2),
    *_convolved(3),
    on((2, 4), "Bidirectional", layer("SimpleRNN", units=4)),
    on(
        (2, 4),
        "Bidirectional",
        layer("SimpleRNN", units=4),
        backward_layer=layer("SimpleRNN", units=4, go_backwards=True),
        merge_mode="sum",
    ),
    Entry(Made("Sequential", (("layers", [layer("Masking"), layer("LSTM", units=3)]),)), ((4, 2),), dtype="padded"),
    Entry(Made("Sequential", (("layers", [layer("Masking"), layer("GRU", units=3)]),)), ((4, 2),), dtype="padded"),
    on((2, 4), "TimeDistributed", layer("Dense", units=1)),
    on((2, 5, 5, 3), "TimeDistributed", layer("Conv2D", filters=2, kernel_size=2)),
)
