"""Batches: all ranks go through the same dataset of whole batches, and each keeps its share of every batch.

The share is cut, and converted to what the model takes, in the dataset's own pipeline, ahead of the step that takes it.
Whether the ranks do go through the same batches is looked at with the first batch of every epoch, and with one of some more.
Where the first ones differ, as after a shuffle without a seed, rank 0 reads for all (:mod:`.handing_out`), as it does from
Python generators; where later ones do, all ranks end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from keras.src.trainers.data_adapters import data_adapter_utils

from ..common.errors import InputError
from ..common.source_lines import running_line
from ..runtime.same_data import DIGESTED_BYTES, PERIOD, SameData, is_compared
from .batch import SAME_BATCHES, Batch
from .handing_out import handed_out
from .ranks import Ranks
from .runs import check_fits
from .signature import PARTS, Signature, Structure, check_dense

logger = logging.getLogger("tensoropt")


class Sharing:
    """Stands where Keras's loops ask for a strategy of distribution: makes of a dataset this rank's shares."""

    def __init__(self, ranks: Ranks, signature: Signature) -> None:
        self._ranks, self._signature = ranks, signature
        self._same = SameData(ranks.processes, "train_on_batch, test_on_batch or predict_on_batch", SAME_BATCHES)

    def experimental_distribute_dataset(self, data: tf.data.Dataset) -> Shares:
        return Shares(data, self._ranks, self._signature)

    def whole(self, element: Structure) -> Batch:
        """A batch that every rank has in whole, as ``train_on_batch`` is given.

        Raises:
            InputError: the ranks have different ones.
        """
        """A batch that every rank has in whole, as ``train_on_batch`` is given."""
        for name, part in zip(PARTS, element, strict=False):
            for leaf in tf.nest.flatten(part):
                check_dense(leaf, f"{name} of a batch")
        element = _each(tf.convert_to_tensor, element)
        parts = _Parts.of(_each(tf.TensorSpec.from_tensor, element), self._signature)
        batch = parts.batch(element)
        if not self._ranks.leads:
            self._same.check(lambda: ((parts.names[i], leaf.numpy()) for i, leaf in enumerate(batch.leaves)))
        return batch


def _each(change: Callable[[Any], Any], element: Sequence[Structure]) -> tuple[Structure, ...]:
    return tuple(part if part is None else keras.tree.map_structure(change, part) for part in element)


class Shares:
    """What Keras iterates over in place of a dataset.

    Attributes:
        one_reads: whether rank 0 reads for all.
        opened: how often the dataset was opened: one that shuffles again each time counts that.
        taken: how many batches were taken since it was opened last.
    """

    def __init__(self, data: tf.data.Dataset, ranks: Ranks, signature: Signature) -> None:
        self._data, self._ranks = data, ranks
        self._parts = _Parts.of(data.element_spec, signature)
        self._begin = 0
        self._pipelines: dict[int, tf.data.Dataset] = {}
        self.one_reads, self.opened, self.taken = False, 0, 0

    def go_on(self, opened: int, taken: int) -> None:
        """Be as after so many openings, of which the last is yet to come, and so many batches."""
        for _ in range(opened):
            iter(self._data)
        self.opened, self._begin = opened, taken

    def __iter__(self) -> Iterator[Batch]:
        self.opened += 1
        self.taken, self._begin = self._begin, 0
        # Opened here and now, as Keras's loops expect it, and read when the first batch is asked for.
        if self._ranks.n_shares == 1:
            return self._counted(self._alone(self._open(1)))
        if self.one_reads:
            return self._counted(handed_out(self._whole(), self._ranks.processes))
        return self._counted(self._agreed(self._open(self._ranks.n_shares)))

    def _counted(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for batch in batches:
            self.taken += 1
            yield batch

    def _alone(self, elements: Iterator[Any]) -> Iterator[Batch]:
        return (batch for _, batch in self._read(elements, 1))

    def _whole(self) -> Iterator[Batch] | None:
        """Whole batches on rank 0."""
        return self._alone(self._open(1)) if self._ranks.rank == 0 else None

    def _agreed(self, elements: Iterator[Any]) -> Iterator[Batch]:
        """This rank's shares, once the ranks' first batches are found to be the same; else what rank 0 reads.

        Raises:
            InputError: later batches differ.
        """
        batches = self._read(elements, self._ranks.n_shares)
        digest, first = next(batches, (None, None))
        other = self._ranks.processes.first_that_differs(digest)
        if other is not None:
            self._let_one_read(other)
            del batches, elements
            yield from handed_out(self._whole(), self._ranks.processes)
            return
        if first is not None:
            yield first
        for number, (digest, batch) in enumerate(batches, 1):
            if is_compared(number):
                self._check_same(digest)
            yield batch

    def _check_same(self, digest: bytes) -> None:
        other = self._ranks.processes.first_that_differs(digest)
        if other is not None:
            raise InputError(
                f"ranks 0 and {other} have different data in batch {self.taken + 1} of a pass through it, as "
                f"some of the {PERIOD - 1} before it may have been: {SAME_BATCHES}; or give a generator, which rank 0 "
                "reads for all"
            )

    def _let_one_read(self, other: int) -> None:
        self.one_reads = True
        if self._ranks.rank == 0:
            logger.warning(
                "ranks 0 and %d have different data (a shuffle without a seed, random augmentation, or a dataset that was "
                "sharded already?): rank 0 reads for all from here on; to have every rank read, give shuffle a seed and "
                "every rank the whole dataset",
                other,
            )

    def _open(self, n_shares: int) -> Iterator[Any]:
        """An epoch's elements; tracing a pipeline takes longer than a small epoch, so that it is kept for the next one."""
        if self.taken:
            return iter(self._pipeline(self._data.skip(self.taken), n_shares))
        if n_shares not in self._pipelines:
            self._pipelines[n_shares] = self._pipeline(self._data, n_shares)
        return iter(self._pipelines[n_shares])

    def _pipeline(self, data: tf.data.Dataset, n_shares: int) -> tf.data.Dataset:
        """Of each batch a digest (where it is compared), the number of samples, and this rank's share of the leaves."""
        rank = self._ranks.rank if n_shares > 1 else 0
        parts = self._parts

        def cut(number: tf.Tensor, *element: Structure) -> tuple[tf.Tensor, ...]:
            leaves = parts.converted(element)
            n_samples = tf.shape(leaves[0])[0]
            if n_shares == 1:
                return tf.constant(b""), n_samples, *leaves
            digest = tf.cond(number % PERIOD == 0, lambda: _digest(leaves, number == 0), lambda: tf.constant(b""))
            start, end = rank * n_samples // n_shares, (rank + 1) * n_samples // n_shares
            is_share = n_samples >= n_shares
            start, end = tf.where(is_share, start, 0), tf.where(is_share, end, n_samples)
            return digest, n_samples, *(leaf[start:end] for leaf in leaves)

        options = tf.data.Options()
        options.deterministic = True
        shares = data.enumerate().map(
            lambda number, element: cut(number, *parts.as_tuple(element)), num_parallel_calls=tf.data.AUTOTUNE
        )
        return shares.prefetch(tf.data.AUTOTUNE).with_options(options)

    def _read(self, elements: Iterator[Any], n_shares: int) -> Iterator[tuple[bytes, Batch]]:
        for digest, n_samples, *leaves in elements:
            n = int(n_samples)
            yield digest.numpy(), self._parts.packed(leaves, n, is_share=1 < n_shares <= n)


def _digest(leaves: Sequence[tf.Tensor], is_first: tf.Tensor) -> tf.Tensor:
    """Return a digest of a batch; of a large one after the first it is that of some columns of each sample."""

    def columns(leaf: tf.Tensor) -> tf.Tensor:
        rows = tf.reshape(leaf, [tf.shape(leaf)[0], -1])
        one = tf.constant(1, tf.int64)
        n_times = tf.size(rows, tf.int64) * leaf.dtype.size // DIGESTED_BYTES
        return rows[:, :: tf.where(is_first, one, tf.maximum(n_times, one))]

    rows = [tf.fingerprint(columns(leaf)) for leaf in leaves]
    return tf.io.serialize_tensor(tf.fingerprint(tf.reshape(tf.concat(rows, 1), [1, -1])))


@dataclass(frozen=True, eq=False)
class _Parts:
    """How to make of a dataset's elements what programs take.

    Attributes:
        is_tuple: whether elements are ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)``; else they are ``x``.
        specs: per leaf that is taken, the planned one.
        paths: per leaf that is taken, where it is: the part, and its place among the part's leaves.
        weights: a structure like that of the sample weights; None without.
        n_labels: how many of the leaves are labels.
    """

    is_tuple: bool
    specs: tuple[tf.TensorSpec, ...]
    paths: tuple[tuple[int, int], ...]
    weights: Structure
    n_labels: int

    @classmethod
    def of(cls, element: Structure, signature: Signature) -> _Parts:
        """Hold a dataset's elements, by their specs, against what is planned.

        Raises:
            InputError: they have other parts, shapes or types.
        """
        is_tuple = isinstance(element, tuple)
        parts = data_adapter_utils.unpack_x_y_sample_weight(element if is_tuple else (element,))
        weights = None if parts[2] is None else keras.tree.map_structure(_planned_weight, parts[2])
        specs: list[tf.TensorSpec] = []
        paths: list[tuple[int, int]] = []
        n_of_part = []
        for place, (given, planned) in enumerate(zip(parts, (signature.inputs, signature.labels, weights), strict=True)):
            for leaf in tf.nest.flatten(given):
                check_dense(leaf, f"{PARTS[place]} of a batch")
            if given is None and planned is not None:
                raise InputError(
                    f"batches ({running_line()}) have no {PARTS[place]}, for which the plan was made; give "
                    f"({', '.join(PARTS[: place + 1])})"
                )
            taken = [] if given is None or planned is None else _matched(given, planned, PARTS[place])
            n_of_part.append(len(taken))
            for spec, leaf in zip(tf.nest.flatten(planned), taken, strict=False):
                got = tf.nest.flatten(given)[leaf]
                if got.shape.rank is not None:
                    name = spec.name or PARTS[place]
                    check_fits(name, [None, *got.shape[1:]], got.dtype.name, [None, *spec.shape[1:]], spec.dtype.name)
                specs.append(spec)
                paths.append((place, leaf))
        return cls(is_tuple, tuple(specs), tuple(paths), weights, n_of_part[1])

    @property
    def names(self) -> tuple[str, ...]:
        """What the leaves are called, in their order."""
        named = zip(self.specs, self.paths, strict=True)
        return tuple(spec.name or ("x", "y", "sample_weight")[part] for spec, (part, _) in named)

    def as_tuple(self, element: Structure) -> tuple[Structure, ...]:
        return element if self.is_tuple else (element,)

    def converted(self, element: Sequence[Structure]) -> list[tf.Tensor]:
        """The leaves that are taken, with the planned types, and shapes but for the batch."""
        leaves = [tf.nest.flatten(part) for part in element]
        return [_converted(leaves[part][leaf], spec) for (part, leaf), spec in zip(self.paths, self.specs, strict=True)]

    def packed(self, leaves: Sequence[tf.Tensor], n_samples: int, is_share: bool) -> Batch:
        """A batch of these leaves."""
        n_inputs = sum(part == 0 for part, _ in self.paths)
        empty = Batch(n_samples, leaves[:n_inputs], leaves[n_inputs : n_inputs + self.n_labels], self.weights)
        return empty.with_leaves(leaves, is_share)

    def batch(self, element: Structure) -> Batch:
        """A whole batch."""
        leaves = self.converted(self.as_tuple(element))
        return self.packed(leaves, int(leaves[0].shape[0]), is_share=False)


def _planned_weight(spec: Any) -> tf.TensorSpec:
    return tf.TensorSpec(spec.shape, keras.backend.floatx())


def _matched(given: Structure, planned: Structure, what: str) -> list[int]:
    """For each planned leaf the place of the given one: by its name where the given are named, else in order.

    Raises:
        InputError: a name is missing, or there are more or fewer leaves.
    """
    if isinstance(given, Mapping) and all(not isinstance(value, (Mapping, list, tuple)) for value in given.values()):
        names = sorted(planned) if isinstance(planned, Mapping) else [spec.name for spec in tf.nest.flatten(planned)]
        places = {name: i for i, name in enumerate(sorted(given))}
        missing = [name for name in names if name not in places]
        if missing and not (len(names) == len(given) == 1):
            got = ", ".join(map(repr, places))
            raise InputError(f"{what} of a batch has {got}, but not {missing[0]!r}, for which the plan was made; name it so")
        return [places.get(name, 0) for name in names]
    n_given, n_planned = len(tf.nest.flatten(given)), len(tf.nest.flatten(planned))
    if n_given != n_planned:
        raise InputError(
            f"{what} of a batch has {n_given} tensors, expected {n_planned}, for which the plan was made; give batches like "
            "those, or parallelize(..., data=dataset) for yours"
        )
    return list(range(n_given))


def _converted(leaf: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    leaf = tf.cast(leaf, spec.dtype) if leaf.dtype != spec.dtype else leaf
    if leaf.shape.rank is not None and leaf.shape.rank != spec.shape.rank:
        leaf = tf.reshape(leaf, [tf.shape(leaf)[0], *spec.shape[1:]])
    return leaf
