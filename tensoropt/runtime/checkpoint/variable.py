"""A variable's entries in a checkpoint: their names, and whether a rank writes and reads its own slices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ...common.errors import InputError, describe
from ...lowering.variables import StateEntry

# The types of which RestoreV2 can copy slices. Variables of other types (float16 above all) are saved unsliced.
SLICED_TYPES = frozenset("bfloat16 float32 float64 int8 int16 int32 int64 uint8 bool complex64 complex128".split())

MODEL, OPTIMIZER = "model", "optimizer"
VALUE = "VARIABLE_VALUE"


def entry_name(entry: StateEntry) -> str:
    """Return the name of an entry in a checkpoint: ``model/<variable>`` or ``optimizer/<step>/<variable>``."""
    return f"{MODEL if entry.step is None else OPTIMIZER}/{entry.key}"


def entry_of(name: str) -> str:
    """Return the entry of a variable in the file: its name, with the suffix by which TensorFlow finds values."""
    return f"{name}/.ATTRIBUTES/{VALUE}"


def in_slices(entry: StateEntry) -> bool:
    """Return whether each rank writes and reads slices of its own; else one writes the global value, and all read it."""
    return entry.dtype in SLICED_TYPES and entry.n_bytes > 0


def check_names(entries: Sequence[StateEntry]) -> None:
    """Raise InputError if two entries of a state have the same name."""
    for name, n in Counter(map(entry_name, entries)).items():
        if n > 1:
            got = f"two variables '{name}'"
            raise InputError(describe("a checkpoint needs names that differ", got=got, advice="rename one"))
