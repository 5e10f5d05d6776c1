"""Which baselines are timed beside the plan that a search has found, and which of them is taken."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from accumulate import models
from helpers import zoo
from helpers.searches import find_frontier, find_with_stages, plans_of

from tensoropt.ft import Budget
from tensoropt.profiling.hardware import named
from tensoropt.profiling.store import Store
from tensoropt.report.explanation import DATA_PARALLELISM, WITHOUT_STAGES
from tensoropt.runtime.execute import MPI
from tensoropt.runtime.ranks import Processes
from tensoropt.search.frontiers.find_frontier import find_baseline
from tensoropt.search.request import Request
from tensoropt.sharding.model import Model
from tensoropt.tuning.baseline_trial import NEAR, PLAN, BaselineTrial, runs_as
from tensoropt.tuning.interleaved_timing import FirstValue

PLENTY = 10**12


def not_asked() -> FirstValue:
    raise AssertionError("no plan is run")


def baseline_trial(model: Model, limit_bytes: int | None = None, budget_s: float = 60.0) -> BaselineTrial:
    alone, store = Processes(0, 1, ("here",)), Store(None, "here")
    return BaselineTrial(
        processes=alone, model=model, first_values=not_asked, collectives=MPI, limit_bytes=limit_bytes, budget_s=budget_s,
        store=store, stats=lambda plan: {},
    )


@pytest.fixture(scope="module")
def frontier():
    return plans_of(find_frontier(zoo.record(zoo.mlp, "momentum").model, named("v100-1x2"), 2))


@pytest.fixture(scope="module")
def near(frontier):
    """Data parallelism's plan and its model; and a plan that runs otherwise, predicted to take as long."""
    (whole,) = frontier.without_stages
    alone = plans_of(find_baseline(whole, "data-parallel"))
    plan = next(plan for plan in map(frontier.plan, range(len(frontier))) if runs_as(plan) != runs_as(alone.plan(0)))
    return whole.model, alone, replace(plan, time_us=alone.points[0].time_us)


def test_data_parallelism_is_tried_where_it_is_near_the_plan(near):
    model, alone, plan = near
    close, far = (replace(plan, time_us=plan.time_us / factor) for factor in (NEAR * 0.99, NEAR * 1.01))
    rival = baseline_trial(model)._baseline(DATA_PARALLELISM, [close], PLENTY)
    assert runs_as(rival) == runs_as(alone.plan(0))
    assert baseline_trial(model)._baseline(DATA_PARALLELISM, [far], PLENTY) is None


def test_it_is_left_out_where_it_does_not_fit_or_costs_too_much(frontier, near):
    model, alone, plan = near
    needed_bytes = alone.peak_bytes(0)
    assert baseline_trial(model, needed_bytes)._baseline(DATA_PARALLELISM, [plan], PLENTY) is not None
    assert baseline_trial(model, needed_bytes - 1)._baseline(DATA_PARALLELISM, [plan], PLENTY) is None
    assert baseline_trial(model)._baseline(DATA_PARALLELISM, [plan], needed_bytes + plan.peak_bytes) is not None
    assert baseline_trial(model)._baseline(DATA_PARALLELISM, [plan], needed_bytes + plan.peak_bytes - 1) is None
    assert baseline_trial(model, budget_s=1e-9)._baseline(DATA_PARALLELISM, [plan], PLENTY) is None
    assert baseline_trial(model)._baseline(DATA_PARALLELISM, [replace(alone.plan(0), frontier=frontier)], PLENTY) is None


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [((1.0, 1.1, 1.2), PLAN), ((1.0, 0.9, 1.2), WITHOUT_STAGES), ((1.0, 0.9, 0.8), DATA_PARALLELISM)],
)
def test_a_plan_with_stages_is_tried_beside_the_fastest_without_and_data_parallelism(seconds, chosen):
    model = models.recorded("mlp", "momentum").model
    found = find_with_stages(Request(model, named("v100-1x2"), None, micro_batches=4, budget=Budget(seconds=0)), 2, (1, 2))
    plan = found.plan([point.n_stages for point in found.points_of].index(2))
    plan = replace(plan, time_us=max(each.points[0].time_us for each in found.without_stages))  # so that all are near
    trial, given = baseline_trial(model), []

    def measured(self, *plans):
        given.append([runs_as(each) for each in plans])
        return list(seconds)

    with patch.object(BaselineTrial, "_median_seconds", measured):
        first, again = (trial.winner(plan, lambda compute: compute()) for _ in range(2))
    (runs,) = given  # what was measured is kept
    assert len(set(runs)) == len(runs) == 3 and runs[0] == runs_as(plan)
    assert runs_as(first) == runs_as(again) == runs[seconds.index(min(seconds))]
    told = first.assumed["interleaved_steps"]
    assert told == again.assumed["interleaved_steps"]
    assert told == {
        "plan_us": 1e6, "without_stages_us": seconds[1] * 1e6, "data_parallel_us": seconds[2] * 1e6, "chosen": chosen
    }  # fmt: skip


def test_what_a_plan_runs_as_has_nothing_of_its_costs(frontier):
    plan = frontier.plan(0)
    stage = replace(plan.stages[0], operators=tuple(replace(op, time_us=1e9) for op in plan.operators))
    slower = replace(plan, time_us=2 * plan.time_us, stages=(stage,))
    assert runs_as(slower) == runs_as(plan)
    digests = [runs_as(frontier.plan(point)) for point in range(len(frontier))]
    assert len(np.unique(digests)) == len(frontier)
