"""A model that was recorded without a session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..sharding.model import Model


@dataclass(frozen=True)
class Recorded:
    """A model that was recorded without a session.

    Attributes:
        name: the name that the user gave.
        optimizers: the optimizers of its training steps, in words.
        first_values: returns a function from a variable's name to its initial value; called only if the model runs.
        seconds_by_phase: seconds of each phase: ``record``, until all is recorded; ``import``, from then until the model can
            be searched.
    """

    name: str
    model: Model
    optimizers: tuple[str, ...]
    first_values: Callable[[], Callable[[str], np.ndarray]]
    seconds_by_phase: dict[str, float] = field(default_factory=dict)
