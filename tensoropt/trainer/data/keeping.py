"""What ``fit`` and a callback that keeps the run in checkpoints know of each other (:mod:`...survive`)."""

from __future__ import annotations

import importlib
import os
from abc import abstractmethod
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import keras
import tensorflow as tf
from keras.src.trainers.data_adapters import array_data_adapter, py_dataset_adapter

from ...common.errors import InputError
from ...common.source_lines import running_line
from ...runtime.failures import notes
from ..batch import Batch
from ..saving import RunPosition
from ..seeding import is_seeded
from ..trainer_ranks import TrainerRanks
from .batch_shares import BatchShares


class RunKeeper(keras.callbacks.Callback):
    """A callback of every rank that saves a run and goes on with it. It runs after all of the user's.

    Attributes:
        history: Keras's history of the running ``fit``.
        seed: the seed of the order in which arrays are shuffled where nothing else seeds it.
        first_epoch: the epoch at which the ``fit`` began when it was new.
    """

    history: keras.callbacks.History
    seed = first_epoch = 0

    @abstractmethod
    def begin(self, trainer: Any, arguments: dict[str, Any]) -> RunPosition | None:
        """Begin a ``fit`` with these arguments, which may be changed; return where it goes on, None at its beginning."""

    @abstractmethod
    def before_opening(self, number: int) -> None:
        """Act before this rank opens data, for the first or a later time."""

    @abstractmethod
    def before_step(self, batch: Batch, position: RunPosition) -> None:
        """Act between two steps, once the next one's batch is there; the position is the one before that batch."""

    def see_data(self, iterator: Any, shares: BatchShares) -> None:
        """Prepare Keras's iterator and the data that it is about to open, so that the data comes again as it came."""
        shares.before_opening = self.before_opening
        adapter = iterator.data_adapter
        if isinstance(adapter, array_data_adapter.ArrayDataAdapter) and adapter._shuffle and not is_seeded():
            _shuffle_by_opening(adapter, shares, self.seed)
        if isinstance(adapter, py_dataset_adapter.PyDatasetAdapter):
            self.see_py_dataset(adapter.py_dataset)

    def see_py_dataset(self, data: keras.utils.PyDataset) -> None:
        """Note that ``fit`` reads a ``PyDataset``."""


def _shuffle_by_opening(adapter: Any, shares: BatchShares, seed: int) -> None:
    """Have arrays shuffled in an order that depends on a seed and on how often they were opened.

    Keras draws them without a seed, so that no later process could draw them again.
    """
    with tf.device("CPU:0"):
        n_openings = tf.Variable(0, dtype=tf.int64, trainable=False)

    def shuffle(values: tf.Tensor, *_: Any, **__: Any) -> tf.Tensor:
        return tf.random.experimental.stateless_shuffle(values, [seed + n_openings, tf.cast(values[0], tf.int64)])

    with patch.object(tf.random, "shuffle", shuffle):
        shares.data = adapter.get_tf_dataset()
    previous: Callable[[int], None] = shares.before_opening

    def before_opening(number: int) -> None:
        n_openings.assign(number)
        previous(number)

    shares.before_opening = before_opening


def taken_out(arguments: dict[str, Any], ranks: TrainerRanks) -> RunKeeper | None:
    """Take the callback that keeps the run out of the arguments of ``fit``; make it if the command line asks for one.

    Raises:
        InputError: there are several, or some ranks have none.
    """
    callbacks = arguments.get("callbacks")
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    all_callbacks = keras.tree.flatten(callbacks) if callbacks is not None else []
    keepers = [callback for callback in all_callbacks if isinstance(callback, RunKeeper)]
    if ranks.leads:
        return None
    odd = ranks.processes.first_that_differs(len(keepers), "the callbacks of fit")
    if len(keepers) > 1 or odd is not None:
        detail = "" if odd is None else f" on rank 0, and another number on rank {odd}"
        raise InputError(
            f"fit ({running_line()}) got {len(keepers)} callbacks tensoropt.Survive{detail}; give one on all ranks"
        )
    if keepers:
        arguments["callbacks"] = [callback for callback in all_callbacks if callback is not keepers[0]]
        return keepers[0]
    if notes.CHECKPOINT not in os.environ:
        return None
    keeper: RunKeeper = importlib.import_module("tensoropt.survive.callback").asked_for()
    return keeper
