"""What an entry of the catalogue of layers is, and the model that trains its layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
from random_models.drawing import Training
from random_models.menus import Made, Shape

BATCH_SIZE = 6
RATE = 0.01
N_CLASSES = 4
"""Of inputs that are whole numbers."""


@dataclass(frozen=True)
class Entry:
    """A layer with its arguments and what it is called with.

    Attributes:
        layer: the layer.
        shapes: of each input, batch apart.
        together: whether several inputs are one argument, a list.
        dtype: of the inputs: ``float``, ``pixel`` for floats from 20 to 200, a type of whole numbers, or for a layer that
            comes first, without a dense one ahead, ``image`` for floats from 20 to 200 and ``padded`` for ones that end
            with zeros.
        call: further arguments of the call.
        again: arguments of a second call, on the result of the first.
        floats: the type that the model computes in.
        predicts: whether Keras's layer gives results of one shape in training and in prediction.
        by_default: whether ``make test`` holds it.
    """

    layer: Made
    shapes: tuple[Shape, ...]
    together: bool = False
    dtype: str = "float"
    call: dict[str, Any] = field(default_factory=dict)
    again: dict[str, Any] | None = None
    floats: str = "float64"
    predicts: bool = True
    by_default: bool = False

    def __str__(self) -> str:
        called = "".join(f", {name}={value}" for name, value in self.call.items())
        again = "" if self.again is None else ", twice"
        return f"{self.layer} on {' and '.join(map(str, self.shapes))}{called}{again}"

    @property
    def is_real(self) -> bool:
        return self.dtype in ("float", "pixel", "image", "padded")

    @property
    def is_led(self) -> bool:
        """Whether a dense layer comes ahead."""
        return self.dtype in ("float", "pixel")

    @property
    def classes(self) -> set[str]:
        """The names of the classes under ``keras.layers`` that it is made of."""
        found, waiting = set(), [self.layer]
        while waiting:
            made = waiting.pop()
            package, _, name = made.name.rpartition(".")
            if package == "layers":
                found.add(getattr(keras.layers, name).__name__)
            waiting += [*made.inner, *_made_in([value for _, value in made.options])]
        return found


def _made_in(values: list[Any]) -> list[Made]:
    flat = [each for value in values for each in (value if isinstance(value, list) else [value])]
    return [each for each in flat if isinstance(each, Made)]


def training_of(entry: Entry, seed: int) -> Training:
    """Return a model of the layer between two dense ones, with what it is trained on.

    The first dense layer has the layer pass gradients on, if they are real numbers; the last one has it receive some.
    """
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(seed)
    inputs = [keras.Input(shape, dtype=None if entry.is_real else entry.dtype) for shape in entry.shapes]
    ahead = [_dense_like(each) if entry.is_led and len(each.shape) > 1 else each for each in inputs]
    layer = entry.layer.make()
    result = layer(*([ahead] if entry.together else ahead), **entry.call)
    result = result if entry.again is None else layer(result, **entry.again)
    heads = [_head(each) for each in keras.tree.flatten(result)]
    model = keras.Model(inputs, heads[0] if len(heads) == 1 else keras.layers.Add()(heads))
    rng = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        # Zeros and ones would hide what is wrong with biases and scales. Pixels stay in their range.
        if not (entry.dtype == "pixel" and "ahead" in variable.path):
            variable.assign(variable.numpy() + 0.05 * rng.normal(size=variable.shape))
    x = [_values(rng, entry, tensor) for tensor in inputs]
    y = rng.normal(size=(BATCH_SIZE, *model.outputs[0].shape[1:]))
    optimizer = keras.optimizers.SGD(RATE, momentum=0.9)
    loss = keras.losses.MeanSquaredError()
    return Training(model, optimizer, loss, None, (x[0] if len(x) == 1 else x, y), str(entry))


def _dense_like(x: Any) -> Any:
    """Return a dense layer's result that isn't far from what it is given, and of its shape."""
    return keras.layers.Dense(x.shape[-1], kernel_initializer="identity", name=f"ahead_{x.name}")(x)


def _head(result: Any) -> Any:
    if not keras.backend.is_float_dtype(result.dtype):
        result = keras.ops.cast(result, keras.config.floatx())
    if len(result.shape) == 1:
        result = keras.layers.Reshape((1,))(result)
    flat = keras.layers.Flatten()(result) if len(result.shape) > 2 else result
    return keras.layers.Dense(2)(flat)


def _values(rng: np.random.Generator, entry: Entry, tensor: Any) -> np.ndarray:
    shape = (BATCH_SIZE, *tensor.shape[1:])
    if entry.dtype in ("float", "padded"):
        found = rng.normal(size=shape).astype(keras.config.floatx())
        if entry.dtype == "padded":
            for sample, values in enumerate(found):
                values[1 + sample % shape[1] :] = 0.0
        return found
    if entry.dtype in ("pixel", "image"):
        return rng.uniform(20.0, 200.0, shape).astype(keras.config.floatx())
    return rng.integers(0, N_CLASSES, shape).astype(entry.dtype)
