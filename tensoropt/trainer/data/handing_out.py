"""Send each rank its share of the batches that rank 0 reads, while the previous step runs.

Rank 0 posts the shares of batch k + 1 before it gives batch k to its step, and the other ranks post their receives likewise.
A header before each batch says what follows, or that nothing follows. Text travels as the bytes of a serialized tensor. All
messages are point to point and between steps, so that no other message is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from keras.src.trainers.data_adapters import array_data_adapter, py_dataset_adapter, tf_dataset_adapter

from ...reschedule.layout import block_bounds
from ...runtime.objects_between_ranks import is_finalized, receive_object, wait_for_all
from ...runtime.ranks import Processes
from ..batch import Batch
from ..trainer_ranks import TrainerRanks

_HEADER_TAG, _DATA_TAG = 7301, 7302
_BATCH = "a batch that rank 0 hands out"
Posted = tuple[Callable[[], Batch], list[Any], list[Any]] | None
"""A function that returns the batch once it has arrived, the requests of its messages, and arrays that they need alive."""


def handed_out(batches: Iterator[Batch] | None, ranks: TrainerRanks) -> Iterator[Batch]:
    """Yield this rank's share of each batch. All ranks iterate in step.

    Args:
        batches: the global batches, on rank 0; None on the other ranks.
    """
    processes = ranks.processes

    def post() -> Posted:
        return _receive(processes) if batches is None else _send(next(batches, None), processes, ranks.least_shared)

    posted = post()
    try:
        while posted is not None:
            batch, requests, _ = posted
            following = post()
            processes.complete(requests, _BATCH)
            posted = following
            yield batch()
    finally:
        # If the iteration stops early, the next batch is already under way on every rank, unless all end.
        if posted is not None and not is_finalized():
            processes.complete(posted[1], _BATCH)


def _send(batch: Batch | None, processes: Processes, least_shared: int) -> Posted:
    processes.begin_collective()
    receivers = range(1, processes.size)
    if batch is None:
        wait_for_all(*(processes.comm.isend(None, rank, _HEADER_TAG) for rank in receivers))
        return None
    is_share = batch.n_samples >= least_shared
    arrays = [np.ascontiguousarray(leaf) for leaf in batch.leaves]
    leaves = list(arrays)

    def share(rank: int) -> list[np.ndarray]:
        start, end = block_bounds(batch.n_samples, processes.size, rank) if is_share else (0, batch.n_samples)
        return [leaf[start:end] for leaf in arrays]

    requests = []
    for rank in receivers:
        shares = share(rank)
        template = batch.with_leaves(list(range(len(shares))), is_share)
        buffers = [np.frombuffer(tf.io.serialize_tensor(x).numpy(), np.uint8) if _is_text(x) else x for x in shares]
        header = template, [(leaf.shape, leaf.dtype) for leaf in buffers], [_is_text(leaf) for leaf in shares]
        requests.append(processes.comm.isend(header, rank, _HEADER_TAG))
        requests += [processes.comm.Isend(_bytes(leaf), rank, _DATA_TAG) for leaf in buffers]
        leaves += buffers
    own_batch = batch.with_leaves([tf.convert_to_tensor(leaf) for leaf in share(0)], is_share)
    return lambda: own_batch, requests, leaves


def _receive(processes: Processes) -> Posted:
    with processes.waiting_in(_BATCH):
        header = receive_object(processes.comm, 0, _HEADER_TAG)
    if header is None:
        return None
    template, specs, are_text = header
    leaves = [np.empty(shape, dtype) for shape, dtype in specs]
    requests = [processes.comm.Irecv(_bytes(leaf), 0, _DATA_TAG) for leaf in leaves]

    def arrived() -> Batch:
        tensors = [
            tf.io.parse_tensor(leaf.tobytes(), tf.string) if is_text else leaf
            for leaf, is_text in zip(leaves, are_text, strict=True)
        ]
        return template.with_leaves(tensors, template.is_share)

    return arrived, requests, leaves


def _is_text(leaf: np.ndarray) -> bool:
    return leaf.dtype == object


def _bytes(leaf: np.ndarray) -> np.ndarray:
    return leaf.reshape(-1).view(np.uint8)


def is_determined(source: Any) -> bool:
    """Return whether a Keras data adapter is expected to give the same batches on all ranks.

    Shuffled arrays and Python generators aren't: each process draws its own random numbers in Python.
    """
    if isinstance(source, array_data_adapter.ArrayDataAdapter):
        return not source._shuffle
    return is_pipeline(source)


def is_pipeline(source: Any) -> bool:
    """Return whether a Keras data adapter's data is a ``tf.data`` pipeline of the user's."""
    return isinstance(source, tf_dataset_adapter.TFDatasetAdapter)


def first_of(source: Any) -> Callable[[], Any] | None:
    """Return a function that returns the first batch of Keras's adapter of a ``PyDataset``; None for other data."""
    if not isinstance(source, py_dataset_adapter.PyDatasetAdapter):
        return None
    return lambda: source._standardize_batch(source.py_dataset[0])
