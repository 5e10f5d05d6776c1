"""A plan made ready to run on made-up batches, with all that its collectives take written down.

Collectives are in one chain, also where a run has two: so each is seen by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .collectives.timed import TimedCommunicator
from .engine import Engine, Feed, Fetch
from .execution import MPI, execute
from .frontier import Model
from .lowering.backends import CommunicatingBackend, TimedBackend
from .lowering.deliver import Collective
from .made_up import made_up_batch
from .plan import Plan
from .processes import Processes

WARM_STEPS = 3


@dataclass(frozen=True)
class PlanTrial:
    """Attributes:
    processes: the ranks that take part.
    communicator: what collectives took.
    paths: what whole deliveries took, with what they copy.
    step: runs one training step.
    """

    processes: Processes
    engine: Engine
    communicator: TimedCommunicator
    paths: TimedBackend
    fetch: Fetch
    feeds: dict[Feed, np.ndarray]

    @classmethod
    def of(cls, plan: Plan, model: Model, initial_value: Callable[[str], np.ndarray], processes: Processes) -> PlanTrial:
        """Build a plan and run some steps, so that nothing is built or first touched later; every rank must call it.

        Raises:
            InputError: the plan is for another model, or for more devices than there are.
        """
        execution = execute(plan, model, initial_value, processes, MPI)
        engine, backend = execution.engine, execution.engine.backend
        assert isinstance(backend, CommunicatingBackend)
        communicator = TimedCommunicator(backend.communicator)
        engine.backend = paths = TimedBackend(backend.mesh, backend.rank, communicator, backend.waiting)
        graph = model.graph
        fetch = Fetch(tuple((step.loss, False) for step in graph.train_steps.values()), tuple(graph.train_steps))
        feeds = {Feed(tensor, False): value for tensor, value in made_up_batch(graph).items()}
        trial = cls(execution.processes, engine, communicator, paths, fetch, feeds)
        for _ in range(WARM_STEPS):
            trial.step()
        trial.forget()
        return trial

    def step(self) -> None:
        self.engine.run(self.fetch, self.feeds)

    def forget(self) -> None:
        """What was written down so far."""
        self.communicator.take()
        self.communicator.take_memory()
        self.paths.take()

    @property
    def log(self) -> tuple[Collective, ...]:
        """The collectives of a step, in the order in which they are called."""
        return self.engine.function(self.fetch, tuple(self.feeds)).log
