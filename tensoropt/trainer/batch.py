"""The batch that a step takes: its tensors and its size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from .capture.signature import Structure

SAME_BATCHES = "every rank gives the same whole batches, and takes its share: draw them alike on all, as with one seed"


@dataclass(frozen=True, eq=False)
class Batch:
    """A batch, or one rank's share of it.

    Attributes:
        n_samples: the number of samples of the batch over all ranks.
        inputs: tensors or arrays, in the order of the model's inputs.
        labels: tensors or arrays, in the order of the loss's labels.
        weights: the sample weights, in their structure; None without.
        is_share: whether the tensors are one rank's share of the batch.
        drops_labels: whether it has labels that aren't among the tensors, since the plan was made without.
    """

    n_samples: int
    inputs: Sequence[Any]
    labels: Sequence[Any] = ()
    weights: Structure = None
    is_share: bool = False
    drops_labels: bool = False

    @property
    def leaves(self) -> list[Any]:
        """All tensors, in the order in which a training step takes them."""
        return [*self.inputs, *self.labels, *([] if self.weights is None else tf.nest.flatten(self.weights))]

    @property
    def extents(self) -> Any:
        """The shapes of inputs, labels and weights without the batch dimension, to tell batches apart."""
        weights = None if self.weights is None else tf.nest.flatten(self.weights)
        parts = (self.inputs, self.labels, weights)
        return tuple(None if part is None else tuple(tuple(tensor.shape)[1:] for tensor in part) for part in parts)

    def with_leaves(self, leaves: Sequence[Any], is_share: bool) -> Batch:
        """Return the same batch with other tensors, given in the order of :attr:`leaves`."""
        n_inputs, n_labels = len(self.inputs), len(self.labels)
        weights = None if self.weights is None else tf.nest.pack_sequence_as(self.weights, leaves[n_inputs + n_labels :])
        inputs, labels = leaves[:n_inputs], leaves[n_inputs : n_inputs + n_labels]
        return replace(self, inputs=inputs, labels=labels, weights=weights, is_share=is_share)
