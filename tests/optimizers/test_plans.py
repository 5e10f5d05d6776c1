"""Plans charge what an update communicates and keeps: every point of small frontiers, executed."""

from __future__ import annotations

import pytest
from helpers.searches import find_frontier, plans_of
from helpers.strategies import executed, feeds_of, planned, uncut_engine
from optimizers.models import case_of, check_state
from optimizers.test_keras import CASES

from tensoropt.lowering.resharding.backends import EmulatedBackend
from tensoropt.plan.build import check_reshardings
from tensoropt.profiling.hardware import resolve
from tensoropt.program.fetch import Fetch
from tensoropt.sharding.resharding import PlainCosts


@pytest.mark.parametrize("name", ["adamw", "own-whole"])
def test_points_of_a_frontier(name: str) -> None:
    case = case_of(*CASES[name])
    frontier = find_frontier(case.model, resolve("v100-1x2"), 2)
    for point in {0, len(frontier.found) - 1}:
        plan = plans_of(frontier).plan(point, "mini_time")
        parts = [each.time_us for each in (*plan.operators, *plan.reshardings)]
        assert sum(parts) == pytest.approx(plan.time_us, rel=1e-9)
        view = case.model.view(plan.stages[0].strategy)
        check_reshardings(view, plan.stages[0])
        path_finder = plan.stages[0].path_finder(PlainCosts())
        engine = uncut_engine(view, path_finder, EmulatedBackend(plan.mesh), lambda n: case.first_values[n])
        fetch = Fetch(((case.graph.tensors[case.loss], False),), ("train",))
        for batch in case.batches:
            engine.run(fetch, feeds_of(case.graph, batch))
        check_state(engine, case.expected, 1e-10)
        log = engine.function(fetch, tuple(feeds_of(case.graph, case.batches[0]))).log
        assert sorted(planned(plan.reshardings)) == sorted(executed(log).elements())


def test_memory_is_that_of_the_slots() -> None:
    """Value, gradient and slots of every parameter make the difference between optimizers on one device."""
    of = {}
    for name in ("sgd-set", "amsgrad"):
        frontier = find_frontier(case_of(*CASES[name], n_steps=0).model, resolve("v100-1x1"), 1)
        of[name] = int(frontier.found.mem_bytes[0])
    # Momentum keeps one slot; AMSGrad three, and what is accumulated.
    assert of["amsgrad"] - of["sgd-set"] == 3 * 8 * (9 * 10 + 10 + 10 * 5 + 5)
