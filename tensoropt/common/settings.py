"""Settings that several packages read, such as how random operators draw: ``TENSOROPT_RANDOM``.

``folded`` (the default): each rank draws its own block from a stream of its own, with the block's index folded into the key.
Statistics are right, replicas are equal to the bit, and the numbers depend on the plan. ``one_device``: each rank draws the
global tensor and keeps its block, which costs the time and memory of the global tensor; the numbers are those of one device.
"""

from __future__ import annotations

import os
from enum import Enum

from .errors import InputError

VARIABLE = "TENSOROPT_RANDOM"


class RandomMode(Enum):
    FOLDED = "folded"
    ONE_DEVICE = "one_device"


def random_mode() -> RandomMode:
    """Return the mode that the environment asks for.

    Raises:
        InputError: the environment variable has another value.
    """
    text = os.environ.get(VARIABLE, RandomMode.FOLDED.value)
    try:
        return RandomMode(text)
    except ValueError:
        expected = " or ".join(f"'{mode.value}'" for mode in RandomMode)
        what = f"environment variable {VARIABLE} is '{text}'; expected {expected}"
        raise InputError(f"{what}: set it to the same on all ranks, or to nothing at all") from None


LAG = 32
"""The most operators of the backward pass that run while a gradient's collective is under way.

With 4 a Transformer on two ranks took a fifth longer than unordered, with 32 a twentieth to an eighth longer; peaks were
equal.
"""
