"""A batch as a step takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from .signature import Structure

SAME_BATCHES = "every rank gives the same whole batches, and takes its share: draw them alike on all, as with one seed"


@dataclass(frozen=True, eq=False)
class Batch:
    """Attributes:
    n_samples: over all ranks.
    inputs: tensors or arrays, in the order of the model's inputs.
    labels: in the order of the loss's.
    weights: of the samples, in their structure; None without.
    is_share: whether this is one rank's share.
    """

    n_samples: int
    inputs: Sequence[Any]
    labels: Sequence[Any] = ()
    weights: Structure = None
    is_share: bool = False

    @property
    def leaves(self) -> list[Any]:
        """In the order in which a training step takes them."""
        return [*self.inputs, *self.labels, *([] if self.weights is None else tf.nest.flatten(self.weights))]

    @property
    def weights_key(self) -> Any:
        """Tells batches apart whose weights have other shapes; None without."""
        if self.weights is None:
            return None
        return tuple(tuple(each.shape[1:]) for each in tf.nest.flatten(self.weights))

    def with_leaves(self, leaves: Sequence[Any], is_share: bool) -> Batch:
        """The same batch with other tensors for its leaves."""
        n_inputs, n_labels = len(self.inputs), len(self.labels)
        weights = None if self.weights is None else tf.nest.pack_sequence_as(self.weights, leaves[n_inputs + n_labels :])
        inputs, labels = leaves[:n_inputs], leaves[n_inputs : n_inputs + n_labels]
        return replace(self, inputs=inputs, labels=labels, weights=weights, is_share=is_share)
