"""Start an optimizer: make variables and updates, on the ranks of one process, for the value that a training step has."""

from __future__ import annotations

from ..ir.optimizer import Optimizer
from .classic import Classic, RunningClassic
from .running_optimizer import RunningOptimizer, Shards


def start_optimizer(optimizer: Optimizer, shards: Shards) -> RunningOptimizer:
    """Return the optimizer at work on the parameters that this process holds."""
    if isinstance(optimizer, Classic):
        return RunningClassic(optimizer, shards)
    # Importing Keras takes a second, which a model without it needn't wait for.
    from .keras_optimizer import KerasOptimizer
    from .keras_running import RunningKeras

    if isinstance(optimizer, KerasOptimizer):
        return RunningKeras(optimizer, shards)
    raise TypeError(f"expected a Classic or a KerasOptimizer, got {optimizer!r}")
