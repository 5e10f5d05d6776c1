"""Compare the plan that was found with data parallelism (the baseline), by measured steps of both, interleaved.

Predictions are a few percent off. Where data parallelism is predicted to be nearly as fast as the best plan found, a few
percent decide; and no plan should be slower than what people would have without a search.
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
from ..profiling.available_memory import available_memory_bytes
from ..profiling.store import Store
from ..report.explanation import INTERLEAVED
from ..runtime.ranks import Processes
from ..sharding.model import Model
from .interleaved_timing import FirstValue, interleaved_seconds, steps_of

NEAR = 1.25
"""The baseline isn't tried if it is predicted to take more than this many times as long as the plan."""
LEAST_TURNS, MOST_TURNS = 3, 8
"""The bounds on the steps of each plan; the trial is left out if the budget doesn't suffice for the lower one."""
SHARE = 0.5
"""The time that all steps may take, over the budget for measurements; it comes on top of that budget."""
OnFirstRank = Callable[[Callable[[], Any]], Any]


@dataclass(frozen=True, kw_only=True)
class BaselineTrial:
    """A trial of a plan against data parallelism.

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
    stats: Callable[[Plan], Mapping[str, Any]]
    progress: Callable[[str, int, int], None] | None = None

    def winner(self, plan: Plan, on_first_rank: OnFirstRank) -> Plan:
        """Return the plan, or data parallelism where that was faster; every rank must call it.

        Args:
            on_first_rank: gives the result that rank 0 computes, or its error, to all ranks.
        """
        key = f"{self.collectives} {runs_as(plan)}"
        known: tuple[float, float] | None = on_first_rank(lambda: self.store.step_s.get(key))
        if known is not None and known[0] <= known[1]:
            return _with_trial(plan, *known, "plan")
        available_bytes = -self.processes.gather_max(-available_memory_bytes(self.processes.local_size))
        baseline: Plan | None = on_first_rank(lambda: self._baseline(plan, available_bytes))
        if baseline is None:
            return plan
        plan_s, baseline_s = self._measured(plan, baseline) if known is None else known
        if known is None and self.processes.rank == 0:
            self.store.add_step_s(key, plan_s, baseline_s)
        if plan_s <= baseline_s:
            return _with_trial(plan, plan_s, baseline_s, "plan")
        return _with_trial(baseline, plan_s, baseline_s, "data parallelism")

    def _measured(self, *plans: Plan) -> list[float]:
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

    def _n_turns(self, *plans: Plan) -> int:
        """Return the most turns that the budget allows, up to ``MOST_TURNS``; it may be below ``LEAST_TURNS``."""
        possible = (n for n in range(MOST_TURNS, 0, -1) if self._seconds(n, *plans) <= SHARE * self.budget_s)
        return next(possible, 0)

    def _seconds(self, n_turns: int, *plans: Plan) -> float:
        return steps_of(n_turns) * sum(plan.time_us for plan in plans) / 1e6

    def _baseline(self, plan: Plan, available_bytes: float) -> Plan | None:
        """Return data parallelism; None where it can't be faster, is the same, or does not fit beside the plan or in the
        budget.
        """
        frontier = plan.frontier
        assert isinstance(frontier, ModelFrontier)
        found = find_baseline(frontier, "data-parallel")
        if found.points[0].time_us > NEAR * plan.time_us:
            return None
        baseline = replace(found, assumed=plan.assumed).plan(0, plan.option)
        needed_bytes = found.needed_bytes(0)
        fits = self.limit_bytes is None or needed_bytes <= self.limit_bytes
        both_bytes = needed_bytes + (plan.peak_bytes or plan.memory_bytes)
        fits = fits and both_bytes <= min(available_bytes, frontier.hardware.device.memory_bytes)
        if runs_as(baseline) == runs_as(plan) or not fits:
            return None
        if self._n_turns(plan, baseline) < LEAST_TURNS:
            return None
        baseline = replace(baseline, frontier=frontier, frontier_text=frontier.table(None, with_peaks=False), point=None)
        return replace(baseline, assumed={**baseline.assumed, "operators": self.stats(baseline)})


def _with_trial(chosen: Plan, plan_s: float, baseline_s: float, name: str) -> Plan:
    stats = {"plan_us": plan_s * 1e6, "data_parallel_us": baseline_s * 1e6, "chosen": name}
    return replace(chosen, assumed={**chosen.assumed, INTERLEAVED: stats})


def runs_as(plan: Plan) -> str:
    """Return a digest of all that decides how a plan runs, without its predicted costs."""
    operators = [(op.name, str(op.config), op.is_rematerialized) for op in plan.operators]
    reshardings = [
        {name: value for name, value in resharding.to_json().items() if name not in ("time_us", "regathering_us")}
        for resharding in plan.reshardings
    ]
    text = json.dumps([plan.model_digest, str(plan.mesh), plan.micro_batches, operators, reshardings], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
