"""The optimizer as callbacks see it: its learning rate and its count of updates, as they are on the ranks."""

from __future__ import annotations

from typing import Any

from ..optimizers.protocol import RunningOptimizer


class RunningRate:
    """Stands for the optimizer of a trainer; the user's own object isn't updated while the model trains."""

    built = True

    def __init__(self, running: RunningOptimizer) -> None:
        self._running = running

    @property
    def learning_rate(self) -> Any:
        """As it is now. Assigning sets it for the next steps; every rank must assign the same."""
        return self._running.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self._running.learning_rate = value

    @property
    def settable_rate(self) -> float | None:
        """The learning rate as a number; None where a schedule makes it. Assigning None leaves it."""
        return self._running.settable_rate

    @settable_rate.setter
    def settable_rate(self, value: float | None) -> None:
        if value is not None and value != self.settable_rate:
            self._running.learning_rate = value

    @property
    def iterations(self) -> int:
        """How many updates have been made."""
        return self._running.iterations
