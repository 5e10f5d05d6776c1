"""Give each rank its share of every batch: all ranks read the same dataset of global batches.

Each share is cut, and converted to the types that the model takes, in the dataset's own pipeline, ahead of the step that
takes it. The ranks compare digests of all batches of the first epoch, and of the first and some later ones of others. If the
first differ, as after a shuffle without a seed, rank 0 reads for all (:mod:`.handing_out`), as for generators; if later ones
do, all end.
"""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import keras
import tensorflow as tf

from ...common.errors import InputError
from ...common.source_lines import running_line
from ...runtime.ranks import current_call
from ...runtime.same_data import PERIOD, SameData, fingerprint, is_compared
from ..batch import SAME_BATCHES, Batch
from ..capture.signature import PARTS, Signature, Structure, check_dense, is_none
from ..trainer_ranks import TrainerRanks
from .element_parts import ElementParts, tensors_of
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
        parts = ElementParts.of(specs, self._expected(lambda: specs))
        batch = parts.batch(tensors_of(element))
        if parts.is_open and not self._ranks.leads:
            odd = self._ranks.processes.first_that_differs(repr(batch.extents))
            if odd is not None:
                raise InputError(f"ranks 0 and {odd} give batches ({running_line()}) of different shapes: {SAME_BATCHES}")
        if not self._ranks.leads:
            self._same.check(lambda: ((parts.names[i], leaf.numpy()) for i, leaf in enumerate(batch.leaves)))
        return batch


ONE_READS = (
    "%s have different data (a shuffle without a seed, random augmentation, or a dataset that was "
    "sharded already?): rank 0 reads for all from here on; to have every rank read, give shuffle a seed and every "
    "rank the whole dataset"
)


def _each(function: Callable[[Any], Any], element: Sequence[Structure]) -> tuple[Structure, ...]:
    return tuple(
        part if part is None else keras.tree.map_structure(lambda leaf: leaf if is_none(leaf) else function(leaf), part)
        for part in element
    )


def _flat(data: tf.data.Dataset) -> Iterator[list[tf.Tensor]]:
    """Return an iterator over each element's tensors, of which to build the element took up to a tenth of a step."""
    iterator = iter(data)
    iterator._element_spec = _AsTheyAre
    return iterator


class _AsTheyAre:  # in the place of a spec, which makes an element of its tensors
    _from_compatible_tensor_list = staticmethod(lambda tensors: tensors)


class BatchShares:
    """A rank's shares of a dataset's batches, over which Keras's loops iterate instead of the dataset.

    Attributes:
        data: the dataset, of global batches.
        is_read_by_one: whether rank 0 reads for all ranks.
        shows_size: whether its first batch decides for how many samples the model is captured.
        n_first: the number of batches in the first epoch, if an opening lasts longer; each is compared between ranks.
        is_tuned: whether TensorFlow tunes its reading, by a thread that an iterator's end waits for, .1 to .6 s long.
        opened: how often the dataset was opened; the order of a dataset that is shuffled at each opening depends on it.
        taken: the number of batches taken since the last opening.
        before_opening: acts before this rank opens the dataset, given how often it is then opened.
        peek: returns the first batch, of data that Keras may shuffle ahead of its first epoch; else the first pass shows it.
    """

    def __init__(self, data: tf.data.Dataset, ranks: TrainerRanks, expected: Expected) -> None:
        self.data, self._ranks, self._expected, self._begin = data, ranks, expected, 0
        self._begun: Iterator[Any] | None = None
        self._pipelines: dict[tuple[int, int], tf.data.Dataset] = {}
        self.is_read_by_one, self.shows_size, self.is_tuned, self.n_first = False, False, True, sys.maxsize
        self.opened = self.taken = self._n_compared = 0
        self.before_opening: Callable[[int], None] = lambda number: None
        self.peek: Callable[[], Structure] | None = None

    def go_on(self, n_opened: int, n_taken: int) -> None:
        """Continue where a run stopped: repeat ``n_opened`` openings, and let the next one start at batch ``n_taken``."""
        for _ in range(n_opened):
            iter(self.data)
        self.opened, self._begin = n_opened, n_taken

    @cached_property
    def parts(self) -> ElementParts:
        """The mapping from the dataset's elements to what programs take; raises InputError if something else is expected."""
        return ElementParts.of(self.data.element_spec, self._expected(self._seen))

    def check(self) -> None:
        """Check that the dataset has what is expected, which its first batch may decide; raise InputError if not."""
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
            if not self.is_read_by_one or self._ranks.rank == 0:
                first = self._first() if self.peek is None else self.peek()
                if first is not None:
                    parts = first if isinstance(first, tuple) else (first,)
                    spec = _each(lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), parts)
        spec = self._ranks.processes.broadcast(spec, "the shapes of rank 0's first batch")
        if spec is None:
            raise InputError(f"the data ({running_line()}) is empty, and the model is captured for a first batch; give one")
        return spec if isinstance(spec, tuple) else (spec,)

    def _first(self) -> Structure | None:
        """Return the first batch of a pass through the data, which the next one begins with; None if there is none."""
        self.before_opening(self.opened + 1)
        elements = iter(self._in_order(self.data.skip(self._begin)))
        first = next(elements, None)
        if first is not None:
            self._begun = itertools.chain([first], elements)
        return first

    def __iter__(self) -> Iterator[Batch]:
        self.check()  # before the dataset is opened, which may begin with the batch that was seen
        self.opened += 1
        self._n_compared = self.n_first if self.opened == 1 else 1
        self.taken, self._begin = self._begin, 0
        # The dataset is opened at once, as Keras's loops expect, but read only when the first batch is asked for.
        if self._ranks.n_shares == 1:
            return self._counted(batch for _, batch in self._open(1))
        if self.is_read_by_one:
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
        """Yield this rank's shares, of what rank 0 reads if first batches differ; raise InputError if later ones do."""
        digest, first = next(batches, (None, None))
        odd = self._ranks.processes.first_that_differs(digest)
        if odd is not None:
            self.is_read_by_one = True
            if self._ranks.rank == 0:
                logger.warning(ONE_READS, f"ranks 0 and {odd}")
            del batches
            yield from handed_out(self._full_batches(), self._ranks)
            return
        if first is not None:
            yield first
        call = current_call("gather")
        for number, (digest, batch) in enumerate(batches, 1):
            is_asked = is_compared(number, self._n_compared) or self.parts.is_open
            odd = self._ranks.processes.first_that_differs(digest, call=call) if is_asked else None
            if odd is not None:
                hint = "" if self.opened == 1 else f", as some of the {PERIOD - 1} before it may have been"
                raise InputError(
                    f"ranks 0 and {odd} have different data in batch {self.taken + 1} of a pass through it{hint}: "
                    f"{SAME_BATCHES}; or give a generator, which rank 0 reads for all"
                )
            yield batch

    def _open(self, n_shares: int) -> Iterator[tuple[bytes, Batch]]:
        """Return an iterator over an epoch's digests and batches, each cut into ``n_shares`` shares.

        Tracing a pipeline takes longer than a small epoch, so the pipeline is reused for the next epoch.
        """
        if self._begun is not None:
            items, self._begun = self._begun, None
            cut = None if self._is_as_is(n_shares) else self._cut(n_shares)
            return self._read(map(tensors_of, items) if cut is None else itertools.starmap(cut, enumerate(items)), n_shares)
        self.before_opening(self.opened)
        if self.taken:
            return self._read(_flat(self._pipeline(self.data.skip(self.taken), n_shares)), n_shares)
        key = n_shares, self._n_compared if n_shares > 1 else 0
        if key not in self._pipelines:
            self._pipelines[key] = self._pipeline(self.data, n_shares)
        return self._read(_flat(self._pipelines[key]), n_shares)

    def _pipeline(self, data: tf.data.Dataset, n_shares: int) -> tf.data.Dataset:
        """Return a dataset that gives what :meth:`_cut` makes of each element, or the elements as they are."""
        if not self._is_as_is(n_shares):
            data = data.enumerate().map(self._cut(n_shares), tf.data.AUTOTUNE)
        return self._in_order(data)

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
        rank, n_least, parts = (self._ranks.rank if n_shares > 1 else 0), self._ranks.least_shared, self.parts
        n_compared = self._n_compared  # of this opening's batches each of the first is compared

        @tf.autograph.experimental.do_not_convert  # which would take longer than all else of a small epoch
        def cut(number: Any, element: Structure) -> tuple[tf.Tensor, ...]:
            leaves = parts.converted(tensors_of(element))
            n_samples = tf.shape(leaves[0])[0]
            if n_shares == 1:
                return tf.zeros([1, 8], tf.uint8), n_samples, *leaves
            is_digested = (number < n_compared) | (number % PERIOD == 0)
            digest = tf.cond(is_digested, lambda: fingerprint(leaves, number == 0), lambda: parts.shapes(leaves))
            start, end = rank * n_samples // n_shares, (rank + 1) * n_samples // n_shares
            is_share = tf.cast(n_samples, tf.int64) >= n_least
            start, end = tf.where(is_share, start, 0), tf.where(is_share, end, n_samples)
            return digest, n_samples, *(leaf[start:end] for leaf in leaves)

        return cut

    def _read(self, elements: Iterator[Any], n_shares: int) -> Iterator[tuple[bytes, Batch]]:
        if self._is_as_is(n_shares):
            yield from ((b"", self.parts.batch(tensors)) for tensors in elements)
            return
        for digest, n_samples, *leaves in elements:
            n, n_least = int(n_samples), self._ranks.least_shared
            yield digest.numpy().tobytes(), self.parts.packed(leaves, n, is_share=n_shares > 1 and n >= n_least)
