"""Every point of a frontier, executed, gives one device's numbers, and costs what the frontier says."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import zoo
from helpers.large import first
from helpers.searches import find_frontier, plans_of
from helpers.strategies import (
    assert_variables,
    engine_of,
    executed,
    feeds_of,
    local_shards,
    planned,
    train_and_check,
    training_fetch,
)

from tensoropt.lowering.resharding.backends import EmulatedBackend
from tensoropt.profiling.hardware import resolve
from tensoropt.search.problem.config_space import COMPACT, FULL
from tensoropt.sharding.resharding import PlainCosts

# All points are costed again; of a longer frontier so many are executed, evenly spread, both ends among them.
MOST_POINTS, MOST_BY_DEFAULT = 8, 2


@pytest.mark.parametrize(
    ("function", "cluster", "space"),
    first(2, [
        (zoo.mlp, "v100-2x2", FULL),
        (zoo.cnn, "v100-2x2", COMPACT),
        (zoo.attention, "v100-1x2", FULL),
        (zoo.cnn, "v100-1x4", FULL),
        (zoo.mlp, "v100-2x4", COMPACT),
        (zoo.attention, "v100-2x4", COMPACT),
        (zoo.mlp, "v100-1x4", FULL),
    ]),
)
def test_all_points_of_a_frontier(function: Any, cluster: str, space: str, everything: bool) -> None:
    model = zoo.record(function, "adam")
    hardware = resolve(cluster)
    frontier = find_frontier(model.model, hardware, hardware.n_devices, space=space)
    found, missing = frontier.found, frontier.built.missing_bytes(frontier.found.strategies)
    for point in range(len(found)):
        mem_bytes, time_ns = frontier.built.problem.cost(found.strategies[point])
        assert (mem_bytes + missing[point], time_ns) == (found.mem_bytes[point], found.time_ns[point])
    step = max(1, -(-(len(found) - 1) // ((MOST_POINTS if everything else MOST_BY_DEFAULT) - 1)))
    for point in sorted({*range(0, len(found), step), len(found) - 1}):
        plan = plans_of(frontier).plan(point, "mini_time")
        parts = [each.time_us for each in (*plan.operators, *plan.reshardings)]
        assert sum(parts) == pytest.approx(plan.time_us, rel=1e-9)
        view = model.model.view(plan.stages[0].strategy)
        engine = engine_of(model, view, plan.stages[0].path_finder(PlainCosts()), EmulatedBackend(plan.mesh))
        train_and_check(engine, model)
        assert_variables(model, view, local_shards(engine))
        log = engine.function(training_fetch(model), tuple(feeds_of(model.graph, model.batches[0]))).log
        assert sorted(planned(plan)) == sorted(executed(log).elements())
