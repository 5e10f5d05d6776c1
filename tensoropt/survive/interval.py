"""How often a run is saved: by time, or by steps."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from ..common.errors import InputError, short
from ..common.source_lines import running_line
from ..common.time_units import parse_time_us


class Interval(NamedTuple):
    """The steps between two saves, or else the seconds."""

    steps: int | None
    seconds: float

    @classmethod
    def of(cls, every: Any) -> Interval:
        """Return the interval for ``"10min"``, ``"500steps"`` or ``500``.

        Raises:
            InputError: it is neither a time nor a number of steps.
        """
        match = re.fullmatch(r"\s*(\d+)\s*steps\s*", every) if isinstance(every, str) else None
        steps = int(match[1]) if match is not None else every
        if type(steps) is int and steps > 0:
            return cls(steps, 0.0)
        if not isinstance(every, str):
            raise InputError(
                f"Survive ({running_line()}) takes every=, a time such as '10min' or a number of steps such as 500, got "
                f"{short(every)}"
            )
        return cls(None, parse_time_us(every, "the time between two saves") / 1e6)

    def share(self, n_steps: int, seconds: float) -> float:
        """Return which part of it has passed, after so many steps and seconds."""
        return n_steps / self.steps if self.steps is not None else seconds / self.seconds
