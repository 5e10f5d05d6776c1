"""How the graph of one micro-batch comes from that of the whole batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .graph import Graph, Operator, Tensor


@dataclass(frozen=True, eq=False)
class Slicing:
    """How the graph of one slice comes from that of the whole step.

    Attributes:
        n: how many slices there are.
        whole: the graph of the whole batch.
        batch: samples in it.
        forms: by name of the tensors that the slices make, the dimension that they split, or SUM.
        once: (operator, position) of the operands that only the first slice takes.
        after: names of the operators that come after all slices.
    """

    n: int
    whole: Graph
    batch: int
    forms: Mapping[str, int]
    once: frozenset[tuple[str, int]]
    after: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class Slice:
    """One of the slices, on so many devices.

    A slice takes its part of each device's share of the batch, so that what a device has loaded stays there. Where shares
    can't be divided alike it takes a run of samples.
    """

    slicing: Slicing
    index: int
    n_devices: int

    @property
    def n_shares(self) -> int:
        return self.n_devices if are_shares_sliced(self.slicing.batch, self.slicing.n, self.n_devices) else 1

    def places(self, extent: int) -> np.ndarray:
        """Where the slice's elements are along a dimension that is split: int[extent / n]."""
        places: np.ndarray = np.arange(extent).reshape(self.n_shares, self.slicing.n, -1)[:, self.index].reshape(-1)
        return places

    def of(self, value: np.ndarray, dimension: int) -> np.ndarray:
        """The slice of a whole array."""
        found: np.ndarray = np.take(value, self.places(value.shape[dimension]), dimension)
        return found

    def makes(self, tensor: Tensor) -> bool:
        """Whether a tensor is of the slice, and not made once for all."""
        return tensor.name in self.slicing.forms

    def takes(self, operator: str, position: int) -> bool:
        """Whether an operand counts in this slice."""
        return self.index == 0 or (operator, position) not in self.slicing.once

    def whole(self, op: Operator) -> Operator:
        """An operator of the slice as it is for the whole batch."""
        return self.slicing.whole.operators[op.name]


def are_shares_sliced(n_samples: int, n_slices: int, n_devices: int) -> bool:
    """Return whether every slice of a batch takes as many samples of each device's share; else it takes a run of samples."""
    return n_slices == 1 or n_samples % (n_slices * n_devices) == 0
