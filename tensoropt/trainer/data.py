"""Batches: every rank goes through the same globally batched dataset and keeps its share of each batch.

The share is cut in the dataset's own pipeline, ahead of the step that takes it. A batch of another size than the planned
one, such as a last one that is smaller, is kept whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from ..errors import InputError, short

Structure = Any


@dataclass(frozen=True, eq=False)
class Batch:
    """What a step takes.

    Attributes:
        n_samples: over all ranks.
        leaves: arrays, flattened: inputs, then labels, then sample weights.
        is_share: whether they are this rank's share.
    """

    n_samples: int
    leaves: list[np.ndarray]
    is_share: bool


def as_dataset(
    x: Structure,
    y: Structure = None,
    sample_weight: Any = None,
    batch_size: int = 1,
    shuffle_seed: int | None = None,
) -> tf.data.Dataset:
    """What a user gave as a dataset of batches: a dataset as it is, arrays batched (and shuffled anew each epoch).

    Raises:
        InputError: it is something else.
    """
    if isinstance(x, tf.data.Dataset):
        if y is not None or sample_weight is not None:
            raise InputError("labels and sample weights are part of the dataset, got them beside it; give only the dataset")
        return x
    parts = tuple(part for part in (x, y, sample_weight) if part is not None)
    if isinstance(x, Iterator) or not _is_arrays(x):
        raise InputError(f"data is a tf.data.Dataset of batches, or arrays, got {short(x)}; put it into a tf.data.Dataset")
    sizes = {np.shape(leaf)[0] for leaf in tf.nest.flatten(parts)}
    if len(sizes) > 1:
        raise InputError(f"arrays have different numbers of samples: {', '.join(map(str, sorted(sizes)))}")
    data = tf.data.Dataset.from_tensor_slices(parts)
    if shuffle_seed is not None:
        data = data.shuffle(sizes.pop(), seed=shuffle_seed, reshuffle_each_iteration=True)
    return data.batch(batch_size)


def _is_arrays(value: Structure) -> bool:
    if isinstance(value, Mapping):
        return all(_is_arrays(each) for each in value.values())
    if isinstance(value, tuple) or (isinstance(value, list) and not np.isscalar(value[0] if value else 0)):
        return all(_is_arrays(each) for each in value) if value and not np.isscalar(value[0]) else True
    return isinstance(value, (np.ndarray, tf.Tensor)) or hasattr(value, "__array__")


def shares(data: tf.data.Dataset, batch_size: int, rank: int, n_ranks: int) -> tf.data.Dataset:
    """Of each batch its number of samples and this rank's share, prefetched."""

    def cut(*parts: Structure) -> tuple[tf.Tensor, Structure]:
        n_samples = tf.shape(tf.nest.flatten(parts)[0])[0]
        is_planned = n_samples == batch_size
        start = tf.where(is_planned, rank * batch_size // n_ranks, 0)
        end = tf.where(is_planned, (rank + 1) * batch_size // n_ranks, n_samples)
        return n_samples, tf.nest.map_structure(lambda leaf: leaf[start:end], parts)

    options = tf.data.Options()
    options.deterministic = True
    return data.map(cut, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE).with_options(options)


def batch_of(element: tuple[tf.Tensor, Structure], batch_size: int) -> Batch:
    """An element of :func:`shares` as a step takes it."""
    n_samples, parts = element
    leaves = [leaf.numpy() for leaf in tf.nest.flatten(parts)]
    return Batch(int(n_samples), leaves, int(n_samples) == batch_size)
