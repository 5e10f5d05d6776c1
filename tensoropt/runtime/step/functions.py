"""Describe the functions that an engine builds: what each is fed, what it returns, and how it is structured."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from ...ir.graph import Tensor
from ...ir.micro_batching import MicroBatch
from ...lowering.operators import Values
from ...lowering.resharding.reshard import Collective
from ...program.fetch import Fetch
from ...reschedule.layout import Layout


@dataclass(frozen=True, slots=True)
class Feed:
    """A tensor that is fed. ``is_local`` says whether each rank feeds only its share of the batch."""

    tensor: Tensor
    is_local: bool


@dataclass(frozen=True, slots=True)
class FedSpec:
    """The shape, with None for an extent that differs between ranks, and the type of what a rank is given of a feed."""

    shape: tuple[int | None, ...]
    dtype: tf.DType
    array_dtype: np.dtype[Any]

    @classmethod
    def of(cls, spec: tf.TensorSpec) -> FedSpec:
        shape = tuple(spec.shape.as_list()) if spec.shape.rank is not None else (None,)
        return cls(shape, spec.dtype, np.dtype(spec.dtype.as_numpy_dtype))

    def fits(self, value: np.ndarray | tf.Tensor) -> bool:
        """Return whether a value is as specified; False for what only TensorFlow's call can tell."""
        dtype = self.dtype if isinstance(value, tf.Tensor) else self.array_dtype
        return bool(value.dtype == dtype) and tuple(value.shape) == self.shape


class Argument(NamedTuple):
    """An argument of a function: what a rank of a stage is given of a feed.

    Attributes:
        feed: the feed, and its number among those of the function.
        is_ahead: whether it is for what the stage runs on the whole batch, ahead of all micro-batches.
        layout: the layout in which the rank is given its shard.
        micro_batches: the micro-batches into which the shard is cut; empty if it is of the whole batch.
        is_as_fed: whether the rank is given the value as it is fed.
    """

    feed: Feed
    number: int
    stage: int
    rank: int
    is_ahead: bool
    layout: Layout
    micro_batches: tuple[MicroBatch, ...]
    is_as_fed: bool
    spec: FedSpec


@dataclass(frozen=True, slots=True)
class BuiltFunction:
    """A TensorFlow function for one set of fetches and feeds.

    Attributes:
        results: for each fetched tensor the stage that returns it, and whether each rank's shard is returned.
    """

    call: tf.types.experimental.ConcreteFunction
    log: tuple[Collective, ...]
    arguments: tuple[Argument, ...]
    results: tuple[tuple[int, bool], ...]

    def run(self, arguments: Sequence[tf.Tensor], is_as_specified: bool) -> Sequence[tf.Tensor]:
        """Return the results.

        To bind and check arguments, TensorFlow's call takes 0.1 to 0.3 ms in a step, whose caches are cold. Arguments of
        which it is known that they are as specified are given to the function as they are.
        """
        if is_as_specified:
            results = self.call.inference_fn.call_flat(*arguments, *self.call.captured_inputs)
        else:
            results = self.call(*arguments)
        return results or ()


def names(fetch: Fetch) -> str:
    """Return the names of all that a function returns or runs, as a text."""
    return ", ".join([*(tensor.name for tensor, _ in fetch.tensors), *fetch.train_steps, *fetch.operators])


def flat(results: Sequence[Values]) -> list[tf.Tensor]:
    """Return the values of all results, rank by rank, each as a tensor of its own."""
    return [tf.identity(value) for values in results for value in values]


def structure_digest(graph: Any, log: Sequence[Collective]) -> str:
    """Return a digest that is equal for graphs of equal structure. Constants' values and sizes may differ between ranks."""
    text = hashlib.sha256()
    for node in graph.as_graph_def().node:
        text.update(f"{node.op} {node.name} {list(node.input)}\n".encode())
    for entry in log:
        text.update(f"{entry}\n".encode())
    return text.hexdigest()
