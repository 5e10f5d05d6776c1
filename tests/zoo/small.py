"""Small sizes of every model of the zoo: the same operators, a few of each."""

from __future__ import annotations

from typing import Any

_CELLS = {"batch": 4, "steps": 3, "layers": 2, "hidden": 4, "vocabulary": 8}
_WORDS = {"batch": 4, "length": 4, "layers": 1, "width": 8, "heads": 2, "vocabulary": 16}

SMALL: dict[str, dict[str, Any]] = {
    "rnn": _CELLS,
    "wide_resnet": {"batch": 4, "image": 8, "depth": 10, "widening": 2, "width": 2, "classes": 4},
    "transformer": _WORDS,
    "transformer_s": _WORDS,
    "vgg16": {"batch": 4, "image": 32, "widths": (2, 2, 4, 4, 4), "hidden": (8, 8), "classes": 4},
    "lenet5": {"batch": 4, "image": 16, "widths": (2, 4), "hidden": (8, 6), "classes": 4},
    "alexnet": {"batch": 4, "image": 67, "widths": (4, 4, 6, 6, 4), "hidden": (8, 8), "classes": 4},
    "inception_v3": {"batch": 2, "image": 75, "repeats": (1, 1, 1), "divisor": 32, "classes": 4},
    "resnet101": {"batch": 4, "image": 32, "blocks": (1, 1, 1, 1), "width": 4, "classes": 4},
    "rnntc": _CELLS,
    "rnnlm": _CELLS,
    "nmt": _CELLS,
    "bert_large": {**_WORDS, "predictions": 2},
    "gpt3": _WORDS,
    "llama3_8b": {**_WORDS, "heads": 4, "key_heads": 2, "inner": 12},
}
