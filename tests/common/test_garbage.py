"""While older objects are kept from the garbage collector, new ones are still collected."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from tensoropt.common.process.garbage import NEVER, older_objects_kept


class Ring:
    """An object that only the garbage collector frees."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def collecting_often() -> Iterator[None]:
    """Collect after a few new objects, and all of them after a few collections."""
    thresholds = gc.get_threshold()
    gc.set_threshold(100, 2, 2)
    yield
    gc.set_threshold(*thresholds)


def test_new_objects_are_collected_and_all_are_afterwards() -> None:
    gc.collect()
    with older_objects_kept():
        n_full = gc.get_stats()[2]["collections"]
        new = [weakref.ref(Ring()) for _ in range(10_000)]
        assert sum(ring() is None for ring in new) > 9_000
        assert gc.get_stats()[2]["collections"] == n_full
    assert gc.get_threshold() == (100, 2, 2)


def test_what_a_program_has_set_is_there_afterwards_whatever_happens() -> None:
    with pytest.raises(KeyError), older_objects_kept(), older_objects_kept():
        assert gc.get_threshold() == (100, 2, NEVER)
        raise KeyError
    assert gc.get_threshold() == (100, 2, 2)
