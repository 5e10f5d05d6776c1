"""Build the engine that runs a plan on this process's ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..common.progress import NOT_SHOWN, Display
from ..lowering.resharding.backends import EmulatedBackend
from ..plan.plan import Plan
from ..sharding.model import Model
from .engine import Engine
from .execute import engine_of
from .pipeline.execute_staged import staged_engine
from .pipeline.staged_engine import StagedEngine
from .ranks import Processes


@dataclass(frozen=True)
class Execution:
    """A plan with the engine that runs it.

    Attributes:
        processes: the ranks that take part.
    """

    plan: Plan
    engine: Engine | StagedEngine
    processes: Processes

    @property
    def is_emulated(self) -> bool:
        """Return whether all ranks of all stages run in this process."""
        return isinstance(self.engine.backend, EmulatedBackend)

    def statistics(self, parameter_bytes: int) -> dict[str, Any]:
        """Return figures of the plan for a training log. Every rank must call it.

        ``collectives_per_step`` counts the collectives of the training step as it was last built with its fetches.
        """
        local = self.engine.local_parameter_bytes
        if not self.is_emulated:
            local = self.processes.gather(local[0])
        return {
            "split_operators": self.plan.n_split_operators,
            "collectives_per_step": self.engine.collectives_per_step,
            "parameter_bytes": parameter_bytes,
            "parameter_bytes_per_rank": local,
        }


def execute(
    plan: Plan,
    model: Model,
    initial_value: Callable[[str], np.ndarray],
    processes: Processes,
    collectives: str,
    display: Display = NOT_SHOWN,
    values_are_exchanged: bool = False,
) -> Execution:
    """Build the engine of a plan, with the variables at their initial values. A rank without work ends here.

    Args:
        initial_value: returns the global initial value of a variable, given by its operator's name.
        display: shows what is done, also while the engine builds its functions.
        values_are_exchanged: whether all processes must ask for the same initial values in the same order.

    Raises:
        InputError: the plan is for another model or for more devices than there are, or has stages and Horovod is asked for.
        OutOfMemoryError: the plan needs more memory than is available.
    """
    if len(plan.stages) > 1:
        built = staged_engine(plan, model, initial_value, processes, collectives, display, values_are_exchanged)
        return Execution(plan, *built)
    return Execution(plan, *engine_of(plan, model, initial_value, processes, collectives, display))
