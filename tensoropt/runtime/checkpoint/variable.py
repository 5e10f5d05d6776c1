"""A variable in a checkpoint: its name, shape, type, layout and shards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from ...common.errors import InputError, describe
from ...lowering.variables import StateEntry
from ...reschedule.layout import Layout, Shape

# The types of which RestoreV2 can copy slices. Variables of other types (float16 above all) are saved unsliced.
SLICED_TYPES = frozenset("bfloat16 float32 float64 int8 int16 int32 int64 uint8 bool complex64 complex128".split())

MODEL, OPTIMIZER = "model", "optimizer"
VALUE = "VARIABLE_VALUE"


@dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """A variable to save or to load.

    Attributes:
        name: the name in the checkpoint, such as ``model/dense/kernel``.
        shape: the global shape.
        dtype: TensorFlow's name of the type.
        layout: the layout of the shards.
        shards: the shards that this process holds.
        ranks: whose shards these are, by their ranks in the layout's mesh.
        first_device: the number of the mesh's first device.
    """

    name: str
    shape: Shape
    dtype: str
    layout: Layout
    shards: tuple[tf.Variable, ...]
    ranks: tuple[int, ...] = (0,)
    first_device: int = 0

    @classmethod
    def of(cls, entry: StateEntry) -> Variable:
        """Return the variable of a state entry."""
        placement = entry.variables, entry.ranks, entry.first_device
        return cls(entry_name(entry), tuple(entry.shape), entry.dtype, entry.layout, *placement)

    @property
    def item_bytes(self) -> int:
        """The bytes of one element."""
        return int(tf.as_dtype(self.dtype).size)

    @property
    def n_bytes(self) -> int:
        """The bytes of the global variable."""
        return math.prod(self.shape) * self.item_bytes

    @property
    def in_slices(self) -> bool:
        """Return whether each rank writes and reads slices of its own.

        Otherwise one rank writes the global value, and all ranks read it.
        """
        return self.dtype in SLICED_TYPES and self.n_bytes > 0

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def entry_name(entry: StateEntry) -> str:
    """Return the name of an entry in a checkpoint: ``model/<variable>`` or ``optimizer/<step>/<variable>``."""
    return f"{MODEL if entry.step is None else OPTIMIZER}/{entry.key}"


def entry_of(name: str) -> str:
    """Return the entry of a variable in the file: its name, with the suffix by which TensorFlow finds values."""
    return f"{name}/.ATTRIBUTES/{VALUE}"


def variables_of(entries: Sequence[StateEntry]) -> list[Variable]:
    """Return the variables of a state; raise InputError if two of them have the same name."""
    variables = [Variable.of(entry) for entry in entries]
    names: set[str] = set()
    for variable in variables:
        if variable.name in names:
            raise InputError(
                describe("a checkpoint needs names that differ", got=f"two variables '{variable.name}'", advice="rename one")
            )
        names.add(variable.name)
    return variables
