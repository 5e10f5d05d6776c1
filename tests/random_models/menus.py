"""The layers of random models, each drawn with its arguments.

A menu is a tuple of functions that draw one entry from the shape at hand, batch apart, or None where the shape doesn't allow
it. Extents stay small, so that a model is captured and planned within a second.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras

Shape = tuple[int, ...]
MOST_ELEMENTS = 500
"""Of a sample, at any place in a model."""
ACTIVATIONS = (None, None, "relu", "tanh", "sigmoid", "elu", "gelu", "silu", "softplus", "leaky_relu", "selu", "softmax")


@dataclass(frozen=True)
class Made:
    """A class or function of Keras by its name under ``keras``, with its arguments; such an argument is made too."""

    name: str
    options: tuple[tuple[str, Any], ...] = ()
    inner: tuple[Made, ...] = ()

    def __str__(self) -> str:
        values = [*map(str, self.inner), *(f"{key}={_text(value)}" for key, value in self.options if value is not None)]
        return f"{self.name.rpartition('.')[2]}({', '.join(values)})"

    def make(self) -> Any:
        found: Any = keras
        for part in self.name.split("."):
            found = getattr(found, part)
        return found(*(each.make() for each in self.inner), **{key: _made(value) for key, value in self.options})


def _text(value: Any) -> str:
    return f"[{', '.join(map(_text, value))}]" if isinstance(value, list) else str(getattr(value, "__name__", value))


def _made(value: Any) -> Any:
    if isinstance(value, list):
        return [_made(each) for each in value]
    return value.make() if isinstance(value, Made) else value


@dataclass(frozen=True)
class Applied:
    """An operation of ``keras.ops`` on one tensor."""

    text: str
    call: Callable[[Any], Any]

    def __str__(self) -> str:
        return self.text


Entry = Made | Applied
Draw = Callable[[random.Random, Shape], Entry | None]


def layer(name: str, *inner: Made, **options: Any) -> Made:
    return Made(f"layers.{name}", tuple(options.items()), inner)


def _size(text: str) -> Callable[[Any], int]:
    return {"few": lambda rng: rng.choice((1, 2, 3)), "width": lambda rng: rng.choice((2, 3, 4, 5, 6, 8))}[text]


few, width = _size("few"), _size("width")


def _penalties(rng: random.Random) -> dict[str, Any]:
    """Regularizers and constraints of a kernel, now and then."""
    found: dict[str, Any] = {"use_bias": False} if rng.random() < 0.15 else {}
    if rng.random() < 0.1:
        found["kernel_regularizer"] = Made("regularizers.L2", (("l2", 0.01),))
    elif rng.random() < 0.05:
        found["kernel_regularizer"] = Made("regularizers.L1L2", (("l1", 0.003), ("l2", 0.01)))
    if rng.random() < 0.06:
        limit = rng.choice((Made("constraints.MaxNorm", (("max_value", 0.7),)), Made("constraints.NonNeg")))
        found["kernel_constraint"] = limit
    return found


# Of every shape


def dense(rng: random.Random, shape: Shape) -> Entry:
    return layer("Dense", units=width(rng), activation=rng.choice(ACTIVATIONS), **_penalties(rng))


def activation(rng: random.Random, shape: Shape) -> Entry:
    kinds = (
        layer("ReLU"),
        layer("LeakyReLU", negative_slope=0.2),
        layer("ELU"),
        layer("Softmax"),
        layer("PReLU"),
        layer("Activation", activation=rng.choice(("tanh", "gelu", "silu", "relu6", "hard_sigmoid", "softsign", "mish"))),
    )
    return rng.choice(kinds)


def dropout(rng: random.Random, shape: Shape) -> Entry:
    rate = rng.choice((0.0, 0.2, 0.4))
    if len(shape) == 2 and rng.random() < 0.3:
        return layer("SpatialDropout1D", rate=rate)
    if len(shape) == 3 and rng.random() < 0.3:
        return layer("SpatialDropout2D", rate=rate)
    if rng.random() < 0.15:
        return layer("GaussianNoise", stddev=0.1)
    return layer("Dropout", rate=rate)


def layer_norm(rng: random.Random, shape: Shape) -> Entry:
    options: dict[str, Any] = {"axis": -1}
    if len(shape) > 1 and rng.random() < 0.2:
        options["axis"] = [-2, -1]
    if rng.random() < 0.2:
        options[rng.choice(("center", "scale"))] = False
    return layer("LayerNormalization", **options)


def batch_norm(rng: random.Random, shape: Shape) -> Entry:
    options: dict[str, Any] = {"momentum": rng.choice((0.5, 0.9))}
    if rng.random() < 0.2:
        options[rng.choice(("center", "scale"))] = False
    if len(shape) > 1 and rng.random() < 0.1:
        options["axis"] = 1
    return layer("BatchNormalization", **options)


def other_norm(rng: random.Random, shape: Shape) -> Entry | None:
    channels = shape[-1]
    if len(shape) > 1 and channels % 2 == 0 and rng.random() < 0.5:
        return layer("GroupNormalization", groups=2)
    return rng.choice((layer("UnitNormalization"), layer("RMSNormalization")))


def rescaling(rng: random.Random, shape: Shape) -> Entry:
    return layer("Rescaling", scale=0.5, offset=0.1)


def reshape(rng: random.Random, shape: Shape) -> Entry | None:
    size = 1
    for extent in shape:
        size *= extent
    ways: list[Shape] = [(size,)]
    ways += [(a, size // a) for a in range(2, 9) if size % a == 0 and size // a > 1]
    ways += [(2, a, size // (2 * a)) for a in range(2, 9) if size % (2 * a) == 0]
    ways = [way for way in ways if way != shape]
    return layer("Reshape", target_shape=rng.choice(ways)) if ways else None


def permute(rng: random.Random, shape: Shape) -> Entry | None:
    if len(shape) < 2:
        return None
    dims = list(range(1, len(shape) + 1))
    rng.shuffle(dims)
    return layer("Permute", dims=tuple(dims))


def flatten(rng: random.Random, shape: Shape) -> Entry | None:
    return layer("Flatten") if len(shape) > 1 else None


def operation(rng: random.Random, shape: Shape) -> Entry | None:
    """Expressions that users write between layers."""
    axis = rng.randint(1, len(shape))
    extent, ops = shape[axis - 1], keras.ops
    wide = extent > 1
    kinds = [
        Applied("tanh(x) * 2 + 1", lambda x: ops.tanh(x) * 2 + 1),
        Applied(f"softmax({axis})", lambda x: ops.softmax(x, axis)),
        Applied(f"x - mean({axis})", lambda x: x - ops.mean(x, axis, keepdims=True)),
        Applied(f"x / (1 + sum(x**2, {axis}))", lambda x: x / (1 + ops.sum(ops.square(x), axis, keepdims=True))),
        Applied(f"cumsum({axis})", lambda x: ops.cumsum(x, axis)),
        Applied(f"flip({axis})", lambda x: ops.flip(x, axis)),
        Applied(f"roll(1, {axis})", lambda x: ops.roll(x, 1, axis)),
        Applied("where(x > 0, x, x / 3)", lambda x: ops.where(x > 0, x, x / 3)),
        Applied("clip(-1, 1)", lambda x: ops.clip(x, -1.0, 1.0)),
        Applied("x * stop_gradient(sigmoid(x))", lambda x: x * ops.stop_gradient(ops.sigmoid(x))),
        Applied("log(1 + exp(x))", lambda x: ops.log(1 + ops.exp(ops.minimum(x, 5.0)))),
        Applied(f"concatenate([x, x**2], {axis})", lambda x: ops.concatenate([x, ops.square(x)], axis)),
        Applied(f"normalize({axis})", lambda x: ops.normalize(x, axis=axis)),
    ]
    if wide:
        kinds += [
            Applied(f"sum of split(2 parts, {axis})", lambda x: _halves(x, axis, extent)),
            Applied(f"x[first dropped, {axis}]", lambda x: ops.take(x, list(range(1, extent)), axis)),
            Applied(f"max({axis}) + x", lambda x: ops.max(x, axis, keepdims=True) + x),
        ]
    if len(shape) > 1:
        kinds += [
            Applied(f"mean({axis})", lambda x: ops.mean(x, axis)),
            Applied(f"logsumexp({axis})", lambda x: ops.logsumexp(x, axis)),
            Applied("swapaxes(1, 2)", lambda x: ops.swapaxes(x, 1, 2)),
        ]
    if len(shape) == 2:
        kinds.append(Applied("einsum(bij,bkj->bik)", lambda x: ops.einsum("bij,bkj->bik", x, x) / shape[1]))
        kinds.append(Applied("x @ x^T", lambda x: ops.matmul(x, ops.transpose(x, (0, 2, 1))) / shape[1]))
    return rng.choice(kinds)


def _halves(x: Any, axis: int, extent: int) -> Any:
    parts = keras.ops.split(x, [extent // 2, 2 * (extent // 2)], axis)
    return parts[0] + keras.ops.tanh(parts[1])


ANY: tuple[Draw, ...] = (
    *(dense, dense, activation, dropout, layer_norm, batch_norm, other_norm, rescaling, reshape, operation, operation),
)

# Of vectors


def repeat(rng: random.Random, shape: Shape) -> Entry:
    return layer("RepeatVector", n=rng.choice((2, 3)))


VECTOR: tuple[Draw, ...] = (*ANY, dense, dense, repeat)

# Of sequences


def conv1d(rng: random.Random, shape: Shape) -> Entry:
    options: dict[str, Any] = {
        "kernel_size": few(rng), "padding": rng.choice(("same", "same", "causal", "valid")), **_window_steps(rng),
    }  # fmt: skip
    if options["kernel_size"] > shape[0]:
        options["padding"] = "same"
    kind = rng.choice(("Conv1D", "Conv1D", "Conv1D", "SeparableConv1D", "DepthwiseConv1D"))
    if kind != "Conv1D" and options["padding"] == "causal":
        options["padding"] = "same"
    options["activation"] = rng.choice(ACTIVATIONS)
    if kind == "DepthwiseConv1D":
        return layer(kind, depth_multiplier=rng.choice((1, 2)), **options)
    return layer(kind, filters=width(rng), **options)


def same_conv1d(rng: random.Random, shape: Shape) -> Entry:
    return layer("Conv1D", filters=width(rng), kernel_size=few(rng), padding=rng.choice(("same", "causal")))


def _window_steps(rng: random.Random) -> dict[str, Any]:
    """A stride or a dilation, not both: TensorFlow has no such windows."""
    drawn = rng.random()
    return {"strides": 2} if drawn < 0.2 else {"dilation_rate": 2} if drawn < 0.35 else {}


def recurrent(rng: random.Random, shape: Shape) -> Entry:
    kind = rng.choice(("LSTM", "GRU", "SimpleRNN"))
    options: dict[str, Any] = {"units": rng.choice((2, 3, 4)), "return_sequences": rng.random() < 0.5}
    for name, chance in (("go_backwards", 0.15), ("unroll", 0.15)):
        if rng.random() < chance:
            options[name] = True
    made = layer(kind, **options)
    return layer("Bidirectional", made) if rng.random() < 0.15 and "go_backwards" not in options else made


def attention(rng: random.Random, shape: Shape) -> Entry:
    return layer("MultiHeadAttention", num_heads=rng.choice((1, 2, 4)), key_dim=rng.choice((2, 3)))


def pool1d(rng: random.Random, shape: Shape) -> Entry | None:
    if rng.random() < 0.3:
        return layer(rng.choice(("GlobalAveragePooling1D", "GlobalMaxPooling1D")))
    if shape[0] < 2:
        return None
    kind = rng.choice(("MaxPooling1D", "AveragePooling1D"))
    return layer(kind, pool_size=2, strides=rng.choice((1, 2)), padding=rng.choice(("same", "valid")))


def lengths(rng: random.Random, shape: Shape) -> Entry | None:
    kinds = [layer("ZeroPadding1D", padding=(1, rng.choice((0, 2)))), layer("UpSampling1D", size=2)]
    if shape[0] > 2:
        kinds.append(layer("Cropping1D", cropping=(1, 0)))
    return rng.choice(kinds)


def distributed(rng: random.Random, shape: Shape) -> Entry:
    inner = layer("Dense", units=width(rng), activation=rng.choice(ACTIVATIONS))
    if rng.random() < 0.5:
        return layer("TimeDistributed", inner)
    return layer("EinsumDense", equation="abc,cd->abd", output_shape=(shape[0], width(rng)), bias_axes="d")


SEQUENCE: tuple[Draw, ...] = (
    *(*ANY, conv1d, conv1d, recurrent, recurrent, attention, attention, pool1d, lengths, distributed, permute, flatten),
)

# Of images


def conv2d(rng: random.Random, shape: Shape) -> Entry:
    kind = rng.choice(("Conv2D", "Conv2D", "Conv2D", "DepthwiseConv2D", "SeparableConv2D", "Conv2DTranspose"))
    size = (few(rng), few(rng))
    padding = rng.choice(("same", "same", "valid"))
    steps = _window_steps(rng)
    if any(extent < length for extent, length in zip(shape, size, strict=False)) or "dilation_rate" in steps:
        padding = "same"
    options: dict[str, Any] = {"kernel_size": size, "padding": padding, "activation": rng.choice(ACTIVATIONS), **steps}
    if kind == "Conv2DTranspose":
        options.pop("dilation_rate", None)
    if kind == "DepthwiseConv2D":
        return layer(kind, depth_multiplier=rng.choice((1, 2)), **options)
    options["filters"] = width(rng)
    if kind == "Conv2D":
        options.update(_penalties(rng))
        if rng.random() < 0.1 and shape[-1] % 2 == 0:
            options.update(groups=2, filters=4)
    return layer(kind, **options)


def same_conv2d(rng: random.Random, shape: Shape) -> Entry:
    return layer("Conv2D", filters=width(rng), kernel_size=(few(rng), few(rng)), padding="same", **_penalties(rng))


def pool2d(rng: random.Random, shape: Shape) -> Entry | None:
    if rng.random() < 0.25:
        kind = rng.choice(("GlobalAveragePooling2D", "GlobalMaxPooling2D"))
        return layer(kind, keepdims=rng.random() < 0.3)
    if min(shape[:2]) < 2:
        return None
    kind = rng.choice(("MaxPooling2D", "AveragePooling2D"))
    return layer(kind, pool_size=2, strides=rng.choice((1, 2)), padding=rng.choice(("same", "valid")))


def sizes(rng: random.Random, shape: Shape) -> Entry | None:
    kinds = [
        layer("ZeroPadding2D", padding=((1, 0), (0, rng.choice((0, 2))))),
        layer("UpSampling2D", size=2, interpolation=rng.choice(("nearest", "bilinear"))),
    ]
    if min(shape[:2]) > 2:
        kinds.append(layer("Cropping2D", cropping=((1, 0), (0, 1))))
    return rng.choice(kinds)


IMAGE: tuple[Draw, ...] = (*ANY, conv2d, conv2d, conv2d, conv2d, pool2d, pool2d, sizes, permute, flatten)
MENUS: dict[int, tuple[Draw, ...]] = {1: VECTOR, 2: SEQUENCE, 3: IMAGE}


_KEEPING: tuple[Draw, ...] = (dense, dense, activation, dropout, layer_norm, batch_norm)
KEEPING: dict[int, tuple[Draw, ...]] = {
    1: _KEEPING,
    2: (*_KEEPING, attention, attention, distributed, same_conv1d, same_conv1d),
    3: (*_KEEPING, same_conv2d, same_conv2d, same_conv2d),
}


def drawn_entry(rng: random.Random, shape: Shape, but: Sequence[Draw] = (), keeps_shape: bool = False) -> Entry:
    """An entry that a shape allows."""
    menu = KEEPING[len(shape)] if keeps_shape else MENUS[len(shape)]
    menu = tuple(draw for draw in menu if draw not in but)
    while True:
        entry = rng.choice(menu)(rng, shape)
        if entry is not None:
            return entry
