"""Check that all ranks give the same values to assign."""

from __future__ import annotations

import hashlib

import numpy as np

from ...common.errors import InputError


def digest(value: np.ndarray) -> bytes:
    """Return a digest of a value's bytes."""
    return hashlib.blake2b(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data, digest_size=16).digest()


def check_same(given: list[tuple[str | None, dict[str, bytes]]]) -> None:
    """Check that all ranks give valid values, equal to those of rank 0.

    Args:
        given: for each rank, why its values were refused (None if they weren't), and the digests of its values by key.

    Raises:
        InputError: a rank's values were refused, or differ from rank 0's.
    """
    refusals = [refusal for refusal, _ in given]
    for rank, refusal in enumerate(refusals):
        if refusal is not None:
            raise InputError(refusal if refusals.count(refusal) == len(refusals) else f"on rank {rank} {refusal}")
    first = given[0][1]
    for rank, (_, digests) in enumerate(given):
        for key in (*first, *digests):
            if digests.get(key) != first.get(key):
                raise InputError(
                    f"ranks 0 and {rank} assign different values to '{key}'; every rank must give the same, as rank 0's "
                    "broadcast to all, or random ones of one seed"
                )
