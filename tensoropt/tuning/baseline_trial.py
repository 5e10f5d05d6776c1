"""Compare the plan that was found with its baselines, by measured steps of all, interleaved.

Predictions are a few percent off, and over a slow link they take data parallelism for up to a quarter slower than it is. No
plan should be slower than what people would have without a search. So its baseline is data parallelism; that of a plan with
stages is the fastest one without, too, if those were searched.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ..ft import InfeasibleError
from ..plan.plan import Plan
from ..profiling.available_memory import available_memory_bytes
from ..profiling.store import Store
from ..report.explanation import BASELINE_US, DATA_PARALLELISM, INTERLEAVED, WITHOUT_STAGES
from ..runtime.ranks import Processes
from ..search.candidates.plan_points import plan_beside
from ..search.frontiers.find_frontier import find_baseline
from ..search.frontiers.model_frontier import ModelFrontier
from ..sharding.model import Model
from .interleaved_timing import FirstValue, interleaved_seconds, steps_of

NEAR = 1.5
"""A baseline isn't tried if it is predicted to take more than this many times as long as the plan."""
LEAST_TURNS, MOST_TURNS = 2, 8
"""The bounds on the steps of each plan; a baseline is left out if the budget doesn't suffice for the lower one."""
PLAN = "plan"
"""The name of the plan that was found, where it is chosen."""
SHARE = 0.75
"""The time that all steps may take, over the budget for measurements; it comes on top of that budget."""
OnFirstRank = Callable[[Callable[[], Any]], Any]


@dataclass(frozen=True, kw_only=True)
class BaselineTrial:
    """A trial of a plan against data parallelism, and of one with stages against one without.

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
        """Return the plan, or that of its baselines which was faster; every rank must call it.

        Args:
            on_first_rank: gives the result that rank 0 computes, or its error, to all ranks.
        """
        names = _names(plan)
        stored = on_first_rank(lambda: {name: self.store.step_s.get(self._key(plan, name)) for name in names})
        trials: dict[str, tuple[float, float]] = {name: seconds for name, seconds in stored.items() if seconds is not None}
        if len(trials) == len(names) and all(plan_s <= baseline_s for plan_s, baseline_s in trials.values()):
            return _with_trial(plan, trials, PLAN)
        left_bytes = -self.processes.gather_max(-available_memory_bytes(self.processes.local_size))
        baselines: dict[str, Plan] = {}
        for name in names:
            others = (plan, *baselines.values())
            baseline = on_first_rank(partial(self._baseline, name, others, left_bytes))
            if baseline is not None:
                baselines[name] = baseline
        if not baselines:
            return plan
        if not baselines.keys() <= trials.keys():
            plan_s, *of_baselines = self._median_seconds(plan, *baselines.values())
            trials = {name: (plan_s, each_s) for name, each_s in zip(baselines, of_baselines, strict=True)}
            if self.processes.rank == 0:
                for name, seconds in trials.items():
                    self.store.add_step_s(self._key(plan, name), *seconds)
        trials = {name: trials[name] for name in baselines}
        # They are compared by their share of the plan's seconds, since they may have been measured on different days.
        fastest = min(trials, key=lambda name: trials[name][1] / trials[name][0])
        plan_s, baseline_s = trials[fastest]
        if plan_s <= baseline_s:
            return _with_trial(plan, trials, PLAN)
        return _with_trial(baselines[fastest], trials, fastest)

    def _key(self, plan: Plan, name: str) -> str:
        """Return what the store keeps a trial of a plan against one of its baselines by."""
        return f"{self.collectives} {runs_as(plan)}{'' if name == _names(plan)[0] else f' {name}'}"

    def _median_seconds(self, *plans: Plan) -> list[float]:
        progress = self.progress if self.processes.rank == 0 else None
        show = None if progress is None else partial(progress, "interleaved steps")
        seconds = interleaved_seconds(
            plans, self.model, self.first_values, self.processes, self.collectives, self._n_turns(*plans), show
        )
        medians: list[float] = np.median(seconds, axis=0).tolist()
        return medians

    def _n_turns(self, *plans: Plan) -> int:
        """Return the most turns that the budget allows, up to ``MOST_TURNS``; it may be below ``LEAST_TURNS``."""
        each_us = sum(plan.time_us for plan in plans)
        return next((n for n in range(MOST_TURNS, 0, -1) if steps_of(n) * each_us / 1e6 <= SHARE * self.budget_s), 0)

    def _baseline(self, name: str, plans: Sequence[Plan], available_bytes: float) -> Plan | None:
        """Return a baseline; None where it can't be faster, is the same as another plan, or does not fit beside the others
        or in the budget.
        """
        plan = plans[0]
        frontier, point = self._frontier_of(plan, name)
        if frontier is None or frontier.points[point].time_us > NEAR * plan.time_us:
            return None
        assert plan.frontier is not None
        baseline = plan_beside(plan.frontier, (frontier, point), plan.option)
        needed_bytes = frontier.peak_bytes(point)
        fits = self.limit_bytes is None or needed_bytes <= self.limit_bytes
        all_bytes = needed_bytes + sum(p.needed_bytes for p in plans)
        fits = fits and all_bytes <= min(available_bytes, frontier.hardware.device.memory_bytes)
        if runs_as(baseline) in map(runs_as, plans) or not fits:
            return None
        if self._n_turns(*plans, baseline) < LEAST_TURNS:
            return None
        return replace(baseline, assumed={**baseline.assumed, "operators": self.stats(baseline)})

    def _frontier_of(self, plan: Plan, name: str) -> tuple[ModelFrontier | None, int]:
        """Return the frontier that has a baseline, and its point there; None where there is none."""
        assert plan.frontier is not None
        result = plan.frontier.fastest_without_stages(self.limit_bytes)
        if result is None or name == WITHOUT_STAGES:
            return result or (None, 0)
        with contextlib.suppress(InfeasibleError):
            return find_baseline(result[0], "data-parallel"), 0
        return None, 0


def _names(plan: Plan) -> list[str]:
    return [WITHOUT_STAGES] * (len(plan.stages) > 1) + [DATA_PARALLELISM]


def _with_trial(plan: Plan, trials: Mapping[str, tuple[float, float]], name: str) -> Plan:
    """Return what was chosen, with the seconds of the plan that was found and of each of its baselines."""
    plan_s = next(iter(trials.values()))[0]
    baselines = {BASELINE_US[baseline]: baseline_s * 1e6 for baseline, (_, baseline_s) in trials.items()}
    return replace(plan, assumed={**plan.assumed, INTERLEAVED: {"plan_us": plan_s * 1e6, **baselines, "chosen": name}})


def runs_as(plan: Plan) -> str:
    """Return a digest of all that decides how a plan runs, without its predicted costs."""
    parts: list[Any] = [plan.model_digest, f"{plan.schedule} {plan.micro_batches} {plan.interleaving}"]
    for stage in plan.stages:
        operators = [(op.name, str(op.config), op.is_rematerialized) for op in stage.operators]
        reshardings = [
            {name: value for name, value in resharding.to_json().items() if name not in ("time_us", "regathering_us")}
            for resharding in stage.reshardings
        ]
        parts.append([stage.in_flight, stage.deferred, stage.devices, str(stage.mesh), operators, reshardings])
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
