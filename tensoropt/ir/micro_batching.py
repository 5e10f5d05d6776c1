"""One of the micro-batches of a step, and what it has of a value of the full batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .graph import MicroBatching, Operator, Tensor


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """One of the micro-batches, on a number of devices.

    A micro-batch takes its part of each device's share of the batch, so that samples stay on the device that loaded them.
    Where the shares can't be divided into equal parts, it takes a run of consecutive samples.
    """

    micro_batching: MicroBatching
    index: int
    n_devices: int

    @property
    def n_shares(self) -> int:
        return self.n_devices if are_shares_divided(self.micro_batching.batch, self.micro_batching.n, self.n_devices) else 1

    def indices(self, extent: int) -> np.ndarray:
        """Return the indices of the micro-batch's elements along a dimension that is split: int[extent / n]."""
        indices: np.ndarray = np.arange(extent).reshape(self.n_shares, self.micro_batching.n, -1)[:, self.index].reshape(-1)
        return indices

    def of(self, value: np.ndarray, dimension: int) -> np.ndarray:
        """Return the micro-batch's part of a full batch's array."""
        part: np.ndarray = np.take(value, self.indices(value.shape[dimension]), dimension)
        return part

    def makes(self, tensor: Tensor) -> bool:
        """Return whether each micro-batch computes its own part of a tensor, and not the step once for all of them."""
        return tensor.name in self.micro_batching.forms

    def takes(self, operator: str, position: int) -> bool:
        return self.index == 0 or (operator, position) not in self.micro_batching.once

    def full_batch(self, op: Operator) -> Operator:
        """Return the operator in the graph of the full batch that an operator of the micro-batch comes from."""
        return self.micro_batching.full_batch.operators[op.name]


def are_shares_divided(n_samples: int, n_micro_batches: int, n_devices: int) -> bool:
    """Return whether every micro-batch takes equally many samples of each device's share of the batch.

    If not, each micro-batch takes a run of consecutive samples.
    """
    return n_micro_batches == 1 or n_samples % (n_micro_batches * n_devices) == 0
