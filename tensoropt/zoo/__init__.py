"""The models of the papers at the papers' sizes, recorded without allocating anything.

Each is a function over TensorFlow's names with its sizes as keyword arguments, the papers' by default. It records into the
default graph, which after :func:`tensoropt.init` is the session's, and returns the loss, a scalar::

    tensoropt.init()
    loss = tensoropt.zoo.vgg16(batch=32)
    tensoropt.GradientDescentOptimizer().minimize(loss)

Left out everywhere: dropout, moving averages of batch statistics, weight decay, and label smoothing, none of which a plan
depends on. Where a paper leaves a size open, the function's docstring says what was chosen and why.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..common.errors import InputError
from ..common.tensorflow_import import import_tensorflow

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


def __getattr__(name: str) -> Any:
    """Return the model of this name; TensorFlow is imported when the first is asked for."""
    if name not in _MODULES:
        raise AttributeError(f"module 'tensoropt.zoo' has no attribute {name!r}")
    return find(name)


def __dir__() -> list[str]:
    return sorted([*globals(), *NAMES])
