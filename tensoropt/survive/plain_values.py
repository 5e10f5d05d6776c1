"""Turn state of plain Python and NumPy values into JSON text and arrays, and back, to the bit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

_KIND = "\0kind"
"""The key of an object in JSON that stands for what JSON doesn't have."""


class NotPlainError(ValueError):
    """A value that isn't made of numbers, text, arrays and the like; the message is its type."""


def encoded(value: Any, arrays: list[np.ndarray]) -> Any:
    """Return a value as JSON has it; arrays are appended to a list, and stand in JSON by their number.

    Raises:
        NotPlainError: it, or something within it, isn't plain.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufc":
        arrays.append(np.array(value))
        return {_KIND: "array" if isinstance(value, np.ndarray) else "scalar", "at": len(arrays) - 1}
    if type(value) in (list, tuple, set):
        items = [encoded(item, arrays) for item in (sorted(value, key=repr) if type(value) is set else value)]
        return items if type(value) is list else {_KIND: type(value).__name__, "items": items}
    if isinstance(value, dict):
        return {_KIND: "dict", "items": [[encoded(name, arrays), encoded(item, arrays)] for name, item in value.items()]}
    raise NotPlainError(type(value).__name__)


def decoded(value: Any, arrays: list[np.ndarray]) -> Any:
    """Return the value that :func:`encoded` was given."""
    if isinstance(value, list):
        return [decoded(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value[_KIND]
    if kind in ("array", "scalar"):
        return arrays[value["at"]] if kind == "array" else arrays[value["at"]][()]
    items = decoded(value["items"], arrays)
    if kind == "dict":
        return dict(items)
    return tuple(items) if kind == "tuple" else set(items)


_STATE, _ARRAY = "tensoropt/run", "tensoropt/run/array"


def as_entries(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state as a checkpoint's entries; raise NotPlainError if something in it isn't plain."""
    arrays: list[np.ndarray] = []
    text = json.dumps(encoded(dict(state), arrays)).encode()
    return {_STATE: text, **{f"{_ARRAY}/{i}": array for i, array in enumerate(arrays)}}


def from_reader(reader: Any) -> dict[str, Any] | None:
    """Return the state in a checkpoint that ``tf.train.load_checkpoint`` reads; None if it has none."""
    if not reader.has_tensor(_STATE):
        return None
    arrays: list[np.ndarray] = []
    while reader.has_tensor(f"{_ARRAY}/{len(arrays)}"):
        arrays.append(np.asarray(reader.get_tensor(f"{_ARRAY}/{len(arrays)}")))
    state: dict[str, Any] = decoded(json.loads(reader.get_tensor(_STATE)), arrays)
    return state
