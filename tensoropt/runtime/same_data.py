"""Check that all ranks are given the same data, as they must be if each gives a global batch.

The ranks compare a digest of each batch of the first epoch, or of the first ``N_FIRST`` calls, and of every ``PERIOD``-th
later. If random draws differ, all batches from some batch on differ, so that comparing some is enough. A digest is a CRC of
the tensor's type, shape and bytes. For a large tensor it is that of ``N_BLOCKS`` blocks, evenly spaced, so that it takes
equally long for any size. Each comparison takes the blocks that follow those before, so that every byte has its turn.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from ..common.errors import InputError
from ..common.source_lines import running_line
from .ranks import Processes

PERIOD, N_FIRST = 16, 64
N_BLOCKS, BLOCK_BYTES = 256, 4096
DIGESTED_BYTES = N_BLOCKS * BLOCK_BYTES


def digest(value: Any, turn: int = 0) -> int:
    """Return a number that is equal for equal tensors, and almost never for different ones.

    Args:
        turn: counts the comparisons; it decides which blocks of a large tensor are taken.
    """
    array = np.ascontiguousarray(value)
    if array.dtype == object:  # texts
        array = np.frombuffer(tf.io.serialize_tensor(array).numpy(), np.uint8)
    flat, kind = array.reshape(-1).view(np.uint8), zlib.crc32(f"{array.dtype} {array.shape}".encode())
    if flat.size > DIGESTED_BYTES:
        width = flat.size // N_BLOCKS
        start = turn * BLOCK_BYTES % width
        blocks = flat[: N_BLOCKS * width].reshape(N_BLOCKS, width)[:, start : start + BLOCK_BYTES]
        flat = np.concatenate([blocks.reshape(-1), flat[N_BLOCKS * width :]])
    return zlib.crc32(flat.data, kind)


def is_compared(number: int, n_first: int) -> bool:
    """Return whether the ranks compare the batch with this number, counted from 0: each of the first, then some."""
    return number < n_first or number % PERIOD == 0


@dataclass
class SameData:
    """A check of the data that the ranks are given in one kind of call, which all ranks make and count alike.

    Attributes:
        call: the call, as the user writes it.
        advice: what the user can do if the ranks are given different data.
        n_first: how many calls from the first on are all compared.
        n_calls: how many calls were made.
    """

    processes: Processes
    call: str
    advice: str
    n_first: int = N_FIRST
    n_calls: int = field(default=0, init=False)

    def check(self, tensors: Callable[[], Iterable[tuple[str, Any]]]) -> None:
        """Compare the tensors of one call, if it is one of the compared ones.

        Raises:
            InputError: the tensors differ between ranks. The message is the same on all ranks.
        """
        number = self.n_calls
        self.n_calls += 1
        if self.processes.size == 1 or not is_compared(number, self.n_first):
            return
        turn = number + number // PERIOD  # of every 16th one, no power of 2
        clash = first_difference(self.processes.gather({name: digest(value, turn) for name, value in tensors()}))
        if clash is not None:
            raise InputError(
                f"ranks 0 and {clash[0]} give different values for '{clash[1]}' in call {number + 1} of {self.call} "
                f"({running_line()}); {self.advice}"
            )


def first_difference(rank_digests: Sequence[Mapping[str, Any]]) -> tuple[int, str] | None:
    """Return the first rank whose digests differ from rank 0's, and the name of the first one that does; or None."""
    pairs = ((rank, name) for rank, digests in enumerate(rank_digests) for name in (*rank_digests[0], *digests))
    return next(((rank, name) for rank, name in pairs if rank_digests[rank].get(name) != rank_digests[0].get(name)), None)


def whole_digest(value: np.ndarray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data, digest_size=16).digest()


def check_same(answers: list[tuple[str | None, dict[str, bytes]]]) -> None:
    """Check that all ranks give valid values, equal to those of rank 0.

    Args:
        answers: for each rank, why its values were refused (None if they weren't), and the digests of its values by key.

    Raises:
        InputError: a rank's values were refused, or differ from rank 0's.
    """
    refusals = [refusal for refusal, _ in answers]
    for rank, refusal in enumerate(refusals):
        if refusal is not None:
            raise InputError(refusal if refusals.count(refusal) == len(refusals) else f"on rank {rank} {refusal}")
    clash = first_difference([digests for _, digests in answers])
    if clash is not None:
        raise InputError(
            f"ranks 0 and {clash[0]} assign different values to '{clash[1]}'; every rank must give the same, as rank 0's "
            "broadcast to all, or random ones of one seed"
        )


def fingerprint(leaves: Sequence[tf.Tensor], is_first: Any) -> tf.Tensor:
    """Return a digest of a batch. For a large batch other than the first, digest only some columns of each sample."""

    def columns(leaf: tf.Tensor) -> tf.Tensor:
        if leaf.shape[1:].is_fully_defined() and leaf.shape[1:].num_elements() * leaf.dtype.size <= BLOCK_BYTES:
            return leaf
        rows = tf.reshape(leaf, [tf.shape(leaf)[0], -1])
        least_step = tf.constant(1, tf.int64)
        n_times = tf.size(rows, tf.int64) * leaf.dtype.size // DIGESTED_BYTES
        return rows[:, :: tf.where(is_first, least_step, tf.maximum(n_times, least_step))]

    rows = tf.concat([tf.fingerprint(columns(leaf)) for leaf in leaves], 1)
    return tf.fingerprint(tf.reshape(rows, [1, -1]))
