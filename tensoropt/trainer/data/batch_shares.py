"""Give each rank its share of every batch: all ranks read the same dataset of global batches.

Each share is cut, and converted to the types that the model takes, in the dataset's own pipeline, ahead of the step that
takes it. The ranks compare digests of every epoch's first batch and of some later ones. If the first differ, as after a
shuffle without a seed, rank 0 reads for all (:mod:`.handing_out`), as for Python generators; if later ones do, all end.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import keras
import tensorflow as tf
from keras.src.trainers.data_adapters import data_adapter_utils

from ...common.errors import InputError
from ...common.source_lines import running_line
from ...runtime.same_data import PERIOD, SameData, fingerprint, is_compared
from ..batch import SAME_BATCHES, Batch
from ..capture.signature import PARTS, Signature, Structure, check_dense, is_none
from ..runs import check_fits
from ..trainer_ranks import TrainerRanks
from .handing_out import handed_out

logger = logging.getLogger("tensoropt")
Expected = Callable[[Callable[[], Structure]], Signature]
"""Returns what batches are expected to be, given a function that returns the specs of those at hand."""


class Sharing:
    """The distribution strategy for Keras's loops: it cuts datasets and batches into this rank's shares."""

    def __init__(self, ranks: TrainerRanks, expected: Expected) -> None:
        self._ranks, self._expected = ranks, expected

    def experimental_distribute_dataset(self, data: tf.data.Dataset) -> BatchShares:
        """Return this rank's shares of a dataset."""
        return BatchShares(data, self._ranks, self._expected)

    @cached_property
    def _same(self) -> SameData:
        return SameData(self._ranks.processes, "train_on_batch, test_on_batch or predict_on_batch", SAME_BATCHES)

    def full_batch(self, element: Structure) -> Batch:
        """Return a global batch that every rank has, as given to ``train_on_batch``.

        Raises:
            InputError: the ranks have different batches, or the batch isn't what the plan was made for.
        """
        for name, part in zip(PARTS, element, strict=False):
            for leaf in tf.nest.flatten(part):
                check_dense(leaf, f"{name} of a batch")
        element = _each(tf.convert_to_tensor, element)
        specs = _each(tf.TensorSpec.from_tensor, element)
        parts = _ElementParts.of(specs, self._expected(lambda: specs))
        batch = parts.batch(element)
        if parts.is_open and not self._ranks.leads:
            other = self._ranks.processes.first_that_differs(repr(batch.extents))
            if other is not None:
                raise InputError(f"ranks 0 and {other} give batches ({running_line()}) of different shapes: {SAME_BATCHES}")
        if not self._ranks.leads:
            self._same.check(lambda: ((parts.names[i], leaf.numpy()) for i, leaf in enumerate(batch.leaves)))
        return batch


ONE_READS = (
    "%s have different data (a shuffle without a seed, random augmentation, or a dataset that was "
    "sharded already?): rank 0 reads for all from here on; to have every rank read, give shuffle a seed and every "
    "rank the whole dataset"
)


def _each(change: Callable[[Any], Any], element: Sequence[Structure]) -> tuple[Structure, ...]:
    return tuple(
        part if part is None else keras.tree.map_structure(lambda leaf: leaf if is_none(leaf) else change(leaf), part)
        for part in element
    )


class BatchShares:
    """A rank's shares of a dataset's batches, over which Keras's loops iterate instead of the dataset.

    Attributes:
        data: the dataset, of global batches.
        one_reads: whether rank 0 reads for all ranks.
        shows_size: whether its first batch decides for how many samples the model is captured.
        is_tuned: whether TensorFlow tunes its reading, by a thread that an iterator's end waits for, .1 to .6 s long.
        opened: how often the dataset was opened; the order of a dataset that is shuffled at each opening depends on it.
        taken: the number of batches taken since the last opening.
        before_opening: acts before this rank opens the dataset, given how often it is then opened.
    """

    def __init__(self, data: tf.data.Dataset, ranks: TrainerRanks, expected: Expected) -> None:
        self.data, self._ranks, self._expected, self._begin = data, ranks, expected, 0
        self._begun: Iterator[Any] | None = None
        self._pipelines: dict[int, tf.data.Dataset] = {}
        self.one_reads, self.shows_size, self.is_tuned, self.opened, self.taken = False, False, True, 0, 0
        self.before_opening: Callable[[int], None] = lambda number: None

    def go_on(self, opened: int, taken: int) -> None:
        """Continue where a run stopped: repeat ``opened`` openings, and let the next one start at batch ``taken``."""
        for _ in range(opened):
            iter(self.data)
        self.opened, self._begin = opened, taken

    @cached_property
    def parts(self) -> _ElementParts:
        """The mapping from the dataset's elements to the tensors that programs take.

        Raises:
            InputError: the dataset doesn't have what is expected.
        """
        return _ElementParts.of(self.data.element_spec, self._expected(self._seen))

    def check(self) -> None:
        """Check that the dataset has what is expected; its first batch may decide what is.

        Raises:
            InputError: it doesn't.
        """
        assert self.parts

    def _seen(self) -> Structure:
        """Return the specs of the dataset's elements, on all ranks those of rank 0.

        Where the dataset leaves extents open, they are those of its first batch. The next iteration begins with that batch,
        so that the dataset isn't opened once more.
        """
        spec = self.data.element_spec
        leaves = [leaf for leaf in tf.nest.flatten(spec) if isinstance(leaf, tf.TensorSpec)]
        if any(leaf.shape.rank is None or None in leaf.shape[not self.shows_size :] for leaf in leaves):
            spec = None
            self.before_opening(self.opened + 1)
            if not self.one_reads or self._ranks.rank == 0:
                elements = iter(self._in_order(self.data.skip(self._begin)))
                first = next(elements, None)
                if first is not None:
                    spec = _each(tf.TensorSpec.from_tensor, first if isinstance(first, tuple) else (first,))
                    self._begun = itertools.chain([first], elements)
        spec = self._ranks.processes.broadcast(spec, "the shapes of rank 0's first batch")
        if spec is None:
            raise InputError(f"the data ({running_line()}) is empty, and the model is captured for a first batch; give one")
        return spec if isinstance(spec, tuple) else (spec,)

    def __iter__(self) -> Iterator[Batch]:
        self.check()  # before the dataset is opened, which may begin with the batch that was seen
        self.opened += 1
        self.taken, self._begin = self._begin, 0
        # The dataset is opened at once, as Keras's loops expect, but read only when the first batch is asked for.
        if self._ranks.n_shares == 1:
            return self._counted(batch for _, batch in self._open(1))
        if self.one_reads:
            return self._counted(handed_out(self._full_batches(), self._ranks))
        return self._counted(self._agreed(self._open(self._ranks.n_shares)))

    def _counted(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for batch in batches:
            self.taken += 1
            yield batch

    def _full_batches(self) -> Iterator[Batch] | None:
        """Return an iterator over global batches on rank 0; None on the other ranks."""
        return (batch for _, batch in self._open(1)) if self._ranks.rank == 0 else None

    def _agreed(self, batches: Iterator[tuple[bytes, Batch]]) -> Iterator[Batch]:
        """Yield this rank's shares if the ranks' first batches are equal; else its shares of what rank 0 reads.

        Raises:
            InputError: later batches differ.
        """
        digest, first = next(batches, (None, None))
        other = self._ranks.processes.first_that_differs(digest)
        if other is not None:
            self._let_one_read(other)
            del batches
            yield from handed_out(self._full_batches(), self._ranks)
            return
        if first is not None:
            yield first
        for number, (digest, batch) in enumerate(batches, 1):
            if is_compared(number) or self.parts.is_open:
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
            logger.warning(ONE_READS, f"ranks 0 and {other}")

    def _open(self, n_shares: int) -> Iterator[tuple[bytes, Batch]]:
        """Return an iterator over an epoch's digests and batches, each cut into ``n_shares`` shares.

        Tracing a pipeline takes longer than a small epoch, so the pipeline is reused for the next epoch.
        """
        if self._begun is not None:
            begun, self._begun = self._begun, None
            cut = None if self._is_as_is(n_shares) else self._cut(n_shares)
            return self._read(begun if cut is None else itertools.starmap(cut, enumerate(begun)), n_shares)
        self.before_opening(self.opened)
        if self.taken:
            return self._read(iter(self._pipeline(self.data.skip(self.taken), n_shares)), n_shares)
        if n_shares not in self._pipelines:
            self._pipelines[n_shares] = self._pipeline(self.data, n_shares)
        return self._read(iter(self._pipelines[n_shares]), n_shares)

    def _pipeline(self, data: tf.data.Dataset, n_shares: int) -> tf.data.Dataset:
        """Return a dataset that gives what :meth:`_cut` makes of each element, or the elements as they are."""
        is_as_is = self._is_as_is(n_shares)
        return self._in_order(data if is_as_is else data.enumerate().map(self._cut(n_shares), tf.data.AUTOTUNE))

    def _is_as_is(self, n_shares: int) -> bool:
        return n_shares == 1 and not self.parts.converts

    def _in_order(self, data: tf.data.Dataset) -> tf.data.Dataset:
        """Return the dataset read ahead, with its elements in their order."""
        options = tf.data.Options()
        options.deterministic = True
        if not self.is_tuned:
            options.autotune.enabled = False
        return data.prefetch(tf.data.AUTOTUNE if self.is_tuned else 2).with_options(options)

    def _cut(self, n_shares: int) -> Callable[[Any, Structure], tuple[tf.Tensor, ...]]:
        """Return a function of an element's number and the element.

        It returns a digest, the number of samples and this rank's share of the tensors. The digest of a batch that isn't
        compared is that of its shapes, as far as these are open. A batch with too few samples isn't cut.
        """
        rank, least, parts = (self._ranks.rank if n_shares > 1 else 0), self._ranks.least_shared, self.parts

        @tf.autograph.experimental.do_not_convert  # which would take longer than all else of a small epoch
        def cut(number: Any, element: Structure) -> tuple[tf.Tensor, ...]:
            leaves = parts.converted(parts.as_tuple(element))
            n_samples = tf.shape(leaves[0])[0]
            if n_shares == 1:
                return tf.constant(b""), n_samples, *leaves
            digest = tf.cond(number % PERIOD == 0, lambda: fingerprint(leaves, number == 0), lambda: _shapes(leaves, parts))
            start, end = rank * n_samples // n_shares, (rank + 1) * n_samples // n_shares
            is_share = tf.cast(n_samples, tf.int64) >= least
            start, end = tf.where(is_share, start, 0), tf.where(is_share, end, n_samples)
            return digest, n_samples, *(leaf[start:end] for leaf in leaves)

        return cut

    def _read(self, elements: Iterator[Any], n_shares: int) -> Iterator[tuple[bytes, Batch]]:
        if self._is_as_is(n_shares):
            yield from ((b"", self.parts.batch(element)) for element in elements)
            return
        for digest, n_samples, *leaves in elements:
            n = int(n_samples)
            yield digest.numpy(), self.parts.packed(leaves, n, is_share=n_shares > 1 and n >= self._ranks.least_shared)


def _shapes(leaves: Sequence[tf.Tensor], parts: _ElementParts) -> tf.Tensor:
    return tf.io.serialize_tensor(tf.concat(list(map(tf.shape, leaves)), 0)) if parts.is_open else tf.constant(b"")


@dataclass(frozen=True, eq=False)
class _ElementParts:
    """The mapping from a dataset's elements to the tensors that programs take (the taken tensors).

    Attributes:
        is_tuple: whether elements are ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)``; else they are ``x``.
        specs: the planned spec of each taken tensor.
        paths: for each taken tensor, the index of its part in the element and its index among the part's tensors.
        weights: the sample weights' specs, in their structure; None without sample weights.
        n_labels: the number of taken tensors that are labels.
        drops_labels: whether elements have labels that aren't taken.
        converts: whether tensors are taken in other types than elements have.
    """

    is_tuple: bool
    specs: tuple[tf.TensorSpec, ...]
    paths: tuple[tuple[int, int], ...]
    weights: Structure
    n_labels: int
    drops_labels: bool
    converts: bool

    @classmethod
    def of(cls, element: Structure, signature: Signature) -> _ElementParts:
        """Match the specs of a dataset's elements with the planned signature.

        Raises:
            InputError: the elements have other parts, shapes or types.
        """
        is_tuple = isinstance(element, tuple)
        parts = data_adapter_utils.unpack_x_y_sample_weight(element if is_tuple else (element,))
        weights = None if parts[2] is None else keras.tree.map_structure(planned_weight, parts[2])
        specs: list[tf.TensorSpec] = []
        paths: list[tuple[int, int]] = []
        n_of_part, converts = [], False
        for index, (given, planned) in enumerate(zip(parts, (signature.inputs, signature.labels, weights), strict=True)):
            for leaf in tf.nest.flatten(given):
                check_dense(leaf, f"{PARTS[index]} of a batch")
            taken = [] if given is None or planned is None else matched(given, planned, PARTS[index])
            n_of_part.append(len(taken))
            for spec, leaf in zip(_dense(planned), taken, strict=False):
                got = tf.nest.flatten(given)[leaf]
                if got.shape.rank is not None:
                    name = spec.name or PARTS[index]
                    check_fits(name, [None, *got.shape[1:]], got.dtype.name, [None, *spec.shape[1:]], spec.dtype.name)
                if PARTS[index] in signature.as_seen and got.dtype.is_floating and not spec.dtype.is_floating:
                    raise InputError(
                        f"{PARTS[index]} of a batch ({running_line()}) has type {got.dtype.name} where the first one had "
                        f"{spec.dtype.name}, to which it can't be converted without a loss; give all batches one type"
                    )
                specs.append(spec)
                paths.append((index, leaf))
                converts = converts or got.dtype != spec.dtype
        drops_labels = parts[1] is not None and signature.labels is None
        return cls(is_tuple, tuple(specs), tuple(paths), weights, n_of_part[1], drops_labels, converts)

    @property
    def is_open(self) -> bool:
        """Return whether batches may differ in extents other than the batch, which every rank must see alike."""
        return any(None in spec.shape[1:] for spec in self.specs)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the taken tensors, in their order."""
        named = zip(self.specs, self.paths, strict=True)
        return tuple(spec.name or ("x", "y", "sample_weight")[part] for spec, (part, _) in named)

    def as_tuple(self, element: Structure) -> tuple[Structure, ...]:
        return element if self.is_tuple else (element,)

    def converted(self, element: Sequence[Structure]) -> list[tf.Tensor]:
        """Return the taken tensors, with the planned types and, except for the batch dimension, the planned ranks."""
        leaves = [tf.nest.flatten(part) for part in element]
        return [_converted(leaves[part][leaf], spec) for (part, leaf), spec in zip(self.paths, self.specs, strict=True)]

    def packed(self, leaves: Sequence[tf.Tensor], n_samples: int, is_share: bool) -> Batch:
        """Return a batch of the taken tensors."""
        n_inputs = sum(part == 0 for part, _ in self.paths)
        empty = Batch(n_samples, leaves[:n_inputs], leaves[n_inputs : n_inputs + self.n_labels], self.weights)
        return replace(empty.with_leaves(leaves, is_share), drops_labels=self.drops_labels)

    def batch(self, element: Structure) -> Batch:
        """Return a global batch from a dataset's element."""
        leaves = self.converted(self.as_tuple(element))
        return self.packed(leaves, int(leaves[0].shape[0]), is_share=False)


def _dense(structure: Structure) -> list[Any]:
    return [leaf for leaf in tf.nest.flatten(structure) if not is_none(leaf)]


def planned_weight(spec: Any) -> tf.TensorSpec:
    """Return the spec of sample weights in the type that Keras weighs losses by."""
    return tf.TensorSpec(spec.shape, keras.backend.floatx())


def matched(given: Structure, planned: Structure, what: str) -> list[int]:
    """Return, for each planned tensor, the index of the given one: by name if the given ones are named, else in order.

    Raises:
        InputError: a name is missing, or the number of tensors differs.
    """
    if isinstance(given, Mapping) and all(not isinstance(value, (Mapping, list, tuple)) for value in given.values()):
        is_named = isinstance(planned, Mapping)
        names = sorted(n for n in planned if planned[n] is not None) if is_named else [each.name for each in _dense(planned)]
        indices = {name: i for i, name in enumerate(sorted(given))}
        missing = [name for name in names if name not in indices]
        if missing and not (len(names) == len(given) == 1):
            got = ", ".join(map(repr, indices))
            raise InputError(f"{what} of a batch has {got}, but not {missing[0]!r}, for which the plan was made; name it so")
        return [indices.get(name, 0) for name in names]
    taken = [index for index, leaf in enumerate(tf.nest.flatten(given)) if not is_none(leaf)]
    n_planned = len(_dense(planned))
    if len(taken) != n_planned:
        raise InputError(
            f"{what} of a batch has {len(taken)} tensors, expected {n_planned}, for which the plan was made; give batches "
            "like those, or parallelize(..., data=dataset) for yours"
        )
    return taken


def _converted(leaf: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    leaf = tf.cast(leaf, spec.dtype) if leaf.dtype != spec.dtype else leaf
    if leaf.shape.rank is not None:
        n_ones = spec.shape.rank - leaf.shape.rank
        for _ in range(n_ones):
            leaf = tf.expand_dims(leaf, -1)
        for _ in range(-n_ones):
            leaf = tf.squeeze(leaf, [-1])
    return leaf
