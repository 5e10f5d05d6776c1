"""What trains by a plan, and tells it."""

from __future__ import annotations

from ..plan.frontier import Frontier
from ..plan.plan import Plan
from .trainer_ranks import TrainerRanks


class Planned:
    """A model or a function that trains on all ranks by a plan."""

    _ranks: TrainerRanks

    @property
    def plan(self) -> Plan:
        """The plan that runs."""
        return self._ranks.execution.plan

    @property
    def frontier(self) -> Frontier | None:
        """All plans that the search found; None on ranks other than 0, which received only the chosen plan."""
        return self.plan.frontier

    def explain(self) -> str:
        """Return tables: what the plan was chosen from, where its time and memory go, and the plan itself."""
        return self.plan.explained()
