"""The values of a model, by shape and element type."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..reschedule.layout import Shape

ITEM_BYTES = {"bool": 1, "bfloat16": 2, "string": 8, "complex64": 8, "complex128": 16}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One value of the model; the name is that of the recorded TensorFlow tensor."""

    name: str
    shape: Shape
    dtype: str

    def __hash__(self) -> int:
        # A graph's tensors have different names, and each step looks some up.
        return hash(self.name)

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES.get(self.dtype) or np.dtype(self.dtype).itemsize

    @property
    def mem_bytes(self) -> int:
        return math.prod(self.shape) * self.item_bytes

    @property
    def is_float(self) -> bool:
        """Return whether elements are real or complex floating-point numbers: only such a tensor may be a partial sum."""
        return "float" in self.dtype or "complex" in self.dtype

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)}"
