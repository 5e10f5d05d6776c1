"""While older objects are kept from the garbage collector, new ones are still collected."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from tensoropt.common.garbage import older_objects_kept


class Ring:
    """An object that only the garbage collector frees."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """Take back what the tests' own process froze, for one test."""
    was_frozen = bool(gc.get_freeze_count())
    gc.unfreeze()
    yield
    if was_frozen:
        gc.freeze()


def test_new_objects_are_collected_and_old_ones_afterwards() -> None:
    old = Ring()
    with older_objects_kept():
        assert gc.get_freeze_count()
        new, old = weakref.ref(Ring()), weakref.ref(old)
        gc.collect()
        assert new() is None and old() is not None
    assert not gc.get_freeze_count()
    gc.collect()
    assert old() is None


def test_what_a_program_froze_stays_frozen() -> None:
    gc.freeze()
    try:
        n_frozen = gc.get_freeze_count()
        with older_objects_kept():
            assert gc.get_freeze_count() == n_frozen
        assert gc.get_freeze_count() == n_frozen
    finally:
        gc.unfreeze()
