"""The models of the papers at the papers' sizes, recorded without allocating anything.

Each is a function over TensorFlow's names with its sizes as keyword arguments, the papers' by default. It records into the
default graph, which after :func:`tensoropt.init` is the session's, and returns the loss, a scalar:

>>> import tensoropt
>>> session = tensoropt.init(hardware="v100-1x1", seed=1)
>>> tensoropt.zoo.lenet5(batch=32).shape
TensorShape([])

Left out everywhere: dropout, moving averages of batch statistics, weight decay, and label smoothing, none of which a plan
depends on. Where a paper leaves a size open, the function's docstring says what was chosen and why.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ..common.errors import InputError
from ..common.process.tensorflow_import import import_tensorflow

if TYPE_CHECKING:
    import tensorflow as tf

_MODULES = {
    "rnn": "recurrent",
    "wide_resnet": "residual",
    "transformer": "transformer",
    "transformer_s": "transformer",
    "vgg16": "convolutional",
    "lenet5": "convolutional",
    "alexnet": "convolutional",
    "inception_v3": "inception",
    "resnet101": "residual",
    "rnntc": "recurrent",
    "rnnlm": "recurrent",
    "nmt": "recurrent",
    "bert_large": "language",
    "gpt3": "language",
    "llama3_8b": "language",
}
NAMES = tuple(_MODULES)


def find(name: str) -> Callable[..., tf.Tensor]:
    """Return the function that records a model.

    Raises:
        InputError: there is none of this name; the nearest are offered.
    """
    if name not in _MODULES:
        near = difflib.get_close_matches(name.lower().replace("-", "_"), NAMES, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}" if near else f"expected one of {', '.join(NAMES)}"
        raise InputError(f"the zoo has no model {name!r}: {hint}")
    import_tensorflow()
    function: Callable[..., tf.Tensor] = getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
    # A module of the same name, which the import has put here, is not what is asked for.
    globals()[name] = function
    return function


def sized(text: str, batch: int | None = None) -> Callable[[], tf.Tensor]:
    """Return the function that records ``NAME[:SIZE=N[,SIZE=N]]``: a model with some of its sizes set.

    Args:
        batch: the size ``batch``, given beside the name; None leaves it to the name.

    Raises:
        InputError: there is no such model, or it has no such size, or a size isn't a positive integer or is given twice.
    """
    name, has_sizes, sizes_text = text.partition(":")
    function = find(name)
    sizes = sizes_of(function, sizes_text, f"zoo:{text}") if has_sizes else {}
    if batch is not None and sizes.setdefault("batch", batch) != batch:
        raise InputError(f"model 'zoo:{text}' has batch={sizes['batch']}, got --batch {batch}; give one of them")
    return partial(function, **sizes)


def sizes_of(function: Callable[..., object], text: str, model: str) -> dict[str, int]:
    """Return the sizes that ``SIZE=N[,SIZE=N]`` gives a model's function: its parameters that are whole numbers.

    Args:
        model: the model's name, for messages.

    Raises:
        InputError: it has no such size, or a size isn't a positive integer or is given twice.
    """
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.annotation in ("int", "int | None", int) or type(p.default) is int]
    sizes: dict[str, int] = {}
    for part in text.split(","):
        size, _, value = part.partition("=")
        if size not in names:
            near = difflib.get_close_matches(size, names, n=1)
            hint = f"did you mean {near[0]}" if near else f"expected one of {', '.join(names)}" if names else "it takes none"
            raise InputError(f"model {model!r}: {function.__name__} has no size {size!r}: {hint}")
        if size in sizes:
            raise InputError(f"model {model!r}: size {size!r} is given twice; give it once")
        if not (value.isascii() and value.isdigit() and int(value)):
            raise InputError(f"model {model!r}: size {size!r} must be a positive integer, got {value!r}")
        sizes[size] = int(value)
    return sizes


def __getattr__(name: str) -> Any:
    """Return the model of this name; TensorFlow is imported when the first is asked for."""
    if name not in _MODULES:
        raise AttributeError(f"module 'tensoropt.zoo' has no attribute {name!r}")
    return find(name)


def __dir__() -> list[str]:
    return sorted([*globals(), *NAMES])
