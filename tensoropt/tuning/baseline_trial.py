"""Compare the plan that was found with a baseline, by measured steps of both, interleaved.

Predictions are a few percent off. Where data parallelism is predicted to be nearly as fast as the best plan found, a few
percent decide; and no plan should be slower than what people would have without a search. The baseline of a plan with stages
is the fastest one without, if those were searched.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..plan.find_frontier import ModelFrontier, find_baseline
from ..plan.plan import Plan
from ..plan.staged_plan import StagedPlan
from ..profiling.available_memory import available_memory_bytes
from ..profiling.store import Store
from ..report.explanation import BASELINE_US, DATA_PARALLELISM, INTERLEAVED, WITHOUT_STAGES
from ..runtime.ranks import Processes
from ..sharding.model import Model
from .interleaved_timing import FirstValue, interleaved_seconds, steps_of
from .planned_parts import fastest_without_stages, unstaged_frontier

NEAR = 1.25
"""The baseline isn't tried if it is predicted to take more than this many times as long as the plan."""
LEAST_TURNS, MOST_TURNS = 3, 8
"""The bounds on the steps of each plan; the trial is left out if the budget doesn't suffice for the lower one."""
SHARE = 0.5
"""The time that all steps may take, over the budget for measurements; it comes on top of that budget."""
OnFirstRank = Callable[[Callable[[], Any]], Any]


@dataclass(frozen=True, kw_only=True)
class BaselineTrial:
    """A trial of a plan against data parallelism, or of one with stages against one without.

    Attributes:
        first_values: returns, for each plan, the function of its variables' first values.
        collectives: the implementation of collectives by which plans run.
        limit_bytes: per device; None without a limit.
        stats: returns the stats of how much of a plan was measured, for its ``assumed``; called on rank 0.
    """

    processes: Processes
    model: Model
    first_values: Callable[[], FirstValue]
    collectives: str
    limit_bytes: int | None
    budget_s: float
    store: Store
    stats: Callable[[Plan | StagedPlan], Mapping[str, Any]]
    progress: Callable[[str, int, int], None] | None = None

    def winner(self, plan: Plan | StagedPlan, on_first_rank: OnFirstRank) -> Plan | StagedPlan:
        """Return the plan, or its baseline where that was faster; every rank must call it.

        Args:
            on_first_rank: gives the result that rank 0 computes, or its error, to all ranks.
        """
        key = f"{self.collectives} {runs_as(plan)}"
        known: tuple[float, float] | None = on_first_rank(lambda: self.store.step_s.get(key))
        name = WITHOUT_STAGES if isinstance(plan, StagedPlan) else DATA_PARALLELISM
        if known is not None and known[0] <= known[1]:
            return _with_trial(plan, *known, name, "plan")
        available_bytes = -self.processes.gather_max(-available_memory_bytes(self.processes.local_size))
        baseline: Plan | None = on_first_rank(lambda: self._baseline(plan, available_bytes))
        if baseline is None:
            return plan
        plan_s, baseline_s = self._measured(plan, baseline) if known is None else known
        if known is None and self.processes.rank == 0:
            self.store.add_step_s(key, plan_s, baseline_s)
        if plan_s <= baseline_s:
            return _with_trial(plan, plan_s, baseline_s, name, "plan")
        return _with_trial(baseline, plan_s, baseline_s, name, name)

    def _measured(self, *plans: Plan | StagedPlan) -> list[float]:
        """Return the median seconds of a step of each plan."""
        shown = None
        if self.progress is not None and self.processes.rank == 0:
            progress = self.progress

            def shown(done: int, total: int) -> None:
                progress("interleaved steps", done, total)

        seconds = interleaved_seconds(
            plans, self.model, self.first_values, self.processes, self.collectives, self._n_turns(*plans), shown
        )
        medians: list[float] = np.median(seconds, axis=0).tolist()
        return medians

    def _n_turns(self, *plans: Plan | StagedPlan) -> int:
        """Return the most turns that the budget allows, up to ``MOST_TURNS``; it may be below ``LEAST_TURNS``."""
        possible = (n for n in range(MOST_TURNS, 0, -1) if self._seconds(n, *plans) <= SHARE * self.budget_s)
        return next(possible, 0)

    def _seconds(self, n_turns: int, *plans: Plan | StagedPlan) -> float:
        return steps_of(n_turns) * sum(plan.time_us for plan in plans) / 1e6

    def _baseline(self, plan: Plan | StagedPlan, available_bytes: float) -> Plan | None:
        """Return the baseline; None where it can't be faster, is the same, or does not fit beside the plan or in the budget.
        """
        searched = plan.frontier
        found, point = self._found(plan)
        if found is None or found.points[point].time_us > NEAR * plan.time_us:
            return None
        baseline = replace(found, assumed=plan.assumed).plan(point, plan.option)
        needed_bytes = found.needed_bytes(point)
        fits = self.limit_bytes is None or needed_bytes <= self.limit_bytes
        both_bytes = needed_bytes + (plan.peak_bytes or plan.memory_bytes)
        fits = fits and both_bytes <= min(available_bytes, found.hardware.device.memory_bytes)
        if runs_as(baseline) == runs_as(plan) or not fits:
            return None
        if self._n_turns(plan, baseline) < LEAST_TURNS:
            return None
        baseline = replace(baseline, assumed={**baseline.assumed, "operators": self.stats(baseline)})
        assert searched is not None
        return replace(baseline, frontier=searched, frontier_text=searched.table(None, with_peaks=False), point=None)

    def _found(self, plan: Plan | StagedPlan) -> tuple[ModelFrontier | None, int]:
        """Return the frontier that has the baseline, and its point there; None where there is no baseline."""
        if not isinstance(plan, StagedPlan):
            return find_baseline(unstaged_frontier(plan), "data-parallel"), 0
        return fastest_without_stages(plan, self.limit_bytes) or (None, 0)


def _with_trial(
    chosen: Plan | StagedPlan, plan_s: float, baseline_s: float, baseline: str, name: str
) -> Plan | StagedPlan:
    stats = {"plan_us": plan_s * 1e6, BASELINE_US[baseline]: baseline_s * 1e6, "chosen": name}
    return replace(chosen, assumed={**chosen.assumed, INTERLEAVED: stats})


def runs_as(plan: Plan | StagedPlan) -> str:
    """Return a digest of all that decides how a plan runs, without its predicted costs."""
    if isinstance(plan, StagedPlan):
        parts = [plan.schedule, *(f"{stage.in_flight} {stage.devices} {runs_as(stage.plan)}" for stage in plan.stages)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    operators = [(op.name, str(op.config), op.is_rematerialized) for op in plan.operators]
    reshardings = [
        {name: value for name, value in resharding.to_json().items() if name not in ("time_us", "regathering_us")}
        for resharding in plan.reshardings
    ]
    text = json.dumps([plan.model_digest, str(plan.mesh), plan.micro_batches, operators, reshardings], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
