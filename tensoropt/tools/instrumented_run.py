"""Run a plan's training step on synthetic batches and record the time and memory of its collectives."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import tensorflow as tf

from ..lowering.resharding.backends import CommunicatingBackend, TimedBackend
from ..lowering.resharding.reshard import Collective
from ..plan.plan import Plan
from ..profiling.trace import MemoryEvent
from ..program.fetch import Fetch
from ..runtime.collectives.timed import TimedCall, TimedCommunicator
from ..runtime.engine import Engine
from ..runtime.execute import MPI
from ..runtime.execution import execute
from ..runtime.measuring.synthetic_batch import WARM_STEPS, synthetic_step
from ..runtime.ranks import Processes
from ..runtime.step.functions import Feed
from ..sharding.model import Model


@dataclass(frozen=True)
class PlanTrial:
    """A plan built on this rank, whose training step can be run and whose collectives are recorded.

    Attributes:
        processes: the ranks that take part.
        chains: the backend that runs the collectives of each chain; see :mod:`..lowering.resharding.path_callbacks`.
        fetch, feeds: what a training step fetches, and the synthetic batch that it is fed.
    """

    processes: Processes
    engine: Engine
    chains: tuple[TimedBackend, ...]
    fetch: Fetch
    feeds: dict[Feed, np.ndarray]

    @classmethod
    def of(cls, plan: Plan, model: Model, initial_value: Callable[[str], np.ndarray], processes: Processes) -> PlanTrial:
        """Build a plan and run WARM_STEPS steps, so that nothing is built or first touched later; every rank must call it.

        Raises:
            InputError: the plan is for another model, or for more devices than there are.
        """
        execution = execute(plan, model, initial_value, processes, MPI)
        engine, backend = execution.engine, execution.engine.backend
        assert isinstance(backend, CommunicatingBackend)
        chains = [_timed(backend)] + ([] if backend.overlappable is None else [_timed(backend.overlappable)])
        if backend.overlappable is not None:
            chains[0] = replace(chains[0], overlappable=chains[1])
        for state in engine.states.values():
            state.backend = chains[0]
        trial = cls(execution.processes, engine, tuple(chains), *synthetic_step(model.graph))
        for _ in range(WARM_STEPS):
            trial.step()
        trial.take_calls()
        trial.take_memory()
        trial.take_paths_s()
        return trial

    def step(self) -> None:
        self.engine.run(self.fetch, self.feeds)

    @property
    def _communicators(self) -> list[TimedCommunicator]:
        return [chain.communicator for chain in self.chains if isinstance(chain.communicator, TimedCommunicator)]

    def take_calls(self) -> tuple[TimedCall, ...]:
        """Return the collectives that were executed since the last call of this method, chain by chain."""
        return tuple(chain.from_iterable(communicator.take() for communicator in self._communicators))

    def take_paths_s(self) -> float:
        """Return the seconds that reshardings took since the last call of this method, their copies included."""
        return sum(chain.take() for chain in self.chains)

    def take_memory(self) -> tuple[MemoryEvent, ...]:
        """Return what collectives allocated and released since the last call of this method, once it is recorded."""
        return tuple(chain.from_iterable(communicator.take_memory() for communicator in self._communicators))

    def follow_memory(self) -> None:
        """Record the memory of collectives from now on."""
        for communicator in self._communicators:
            communicator.follows_memory = True

    @property
    def held_bytes(self) -> int:
        """Return the bytes that are held from one step to the next: variables, and what collectives hold."""
        shards = ((entry, entry.layout.local_shape(entry.shape, r)) for entry in self.engine.state() for r in entry.ranks)
        of_variables = sum(math.prod(shape) * tf.as_dtype(entry.dtype).size for entry, shape in shards)
        return of_variables + sum(communicator.workspace_bytes for communicator in self._communicators)

    @property
    def log(self) -> tuple[Collective, ...]:
        """Return the collectives that the step's graph contains, in the order of :meth:`take_calls`."""
        log = self.engine.function(self.fetch, tuple(self.feeds)).log
        return tuple(sorted(log, key=lambda entry: entry.is_overlappable)) if len(self.chains) > 1 else log


def _timed(backend: CommunicatingBackend) -> TimedBackend:
    return TimedBackend(backend.mesh, backend.rank, TimedCommunicator(backend.communicator), backend.waiting)
