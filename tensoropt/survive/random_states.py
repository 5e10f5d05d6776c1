"""Keep the states of Python's and NumPy's own random numbers, from which data may be drawn."""

from __future__ import annotations

import random
from typing import Any

import numpy as np


def random_states() -> Any:
    """Return the states of Python's and NumPy's random numbers."""
    return random.getstate(), np.random.get_state()


def set_random_states(states: Any) -> None:
    """Set the states that :func:`random_states` returned."""
    random.setstate(states[0])
    np.random.set_state(states[1])


def are_equal(one: Any, other: Any) -> bool:
    """Return whether two states are equal."""
    same_python = one[0] == other[0]
    return bool(same_python and all(np.array_equal(a, b) for a, b in zip(one[1], other[1], strict=True)))
