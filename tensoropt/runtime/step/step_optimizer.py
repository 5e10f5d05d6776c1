"""The optimizer of a training step: what it is asked for is the same in all stages, or is gathered from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...lowering.variables import StateEntry


@dataclass
class StepOptimizer:
    """The optimizer of a training step, of which each stage has a part.

    Attributes:
        averages: the keys of each parameter and of its moving average; empty if the optimizer keeps none.
        running: the parts in the stages that this process builds; running optimizers.
    """

    step: str
    state_of_all: Callable[[], Sequence[StateEntry]]
    averages: tuple[tuple[str, str], ...]
    running: tuple[Any, ...]

    @property
    def learning_rate(self) -> Any:
        """Return the learning rate as it is now; assigning a number sets it in the stages of this process."""
        return self.running[0].learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        for optimizer in self.running:
            optimizer.learning_rate = value

    def new_settings(self) -> dict[str, Any]:
        """Return the attributes that were set on the user's optimizer since they were last taken over."""
        return dict(self.running[0].new_settings())

    def take_over(self, settings: Mapping[str, Any]) -> None:
        """Compute by other attributes of the optimizer from the next step that is built."""
        for optimizer in self.running:
            optimizer.take_over(settings)

    @property
    def iterations(self) -> int:
        """Return how many updates have been made."""
        return int(self.running[0].iterations)

    def state(self) -> tuple[StateEntry, ...]:
        """Return the optimizer's variables in all stages."""
        return tuple(entry for entry in self.state_of_all() if entry.step == self.step)

    def finish(self) -> None:
        """Do what Keras's optimizer does when training ends."""
        for optimizer in self.running:
            optimizer.finish()
