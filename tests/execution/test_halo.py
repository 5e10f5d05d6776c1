"""Models whose windows slide over split heights and widths: one device's numbers, and plans that keep their exchanges."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from helpers import zoo
from helpers.strategies import (
    Link,
    assert_variables,
    engine_of,
    executed,
    feeds_of,
    local_shards,
    random_router,
    random_strategy,
    slides,
    train_and_check,
    training_fetch,
)

from tensoropt.lowering.resharding.backends import EmulatedBackend
from tensoropt.plan.build import cost_entries
from tensoropt.plan.consistency import check_reshardings
from tensoropt.plan.plan import Plan
from tensoropt.plan.record import PlannedOperator, PlannedResharding
from tensoropt.plan.stage_plan import StagePlan
from tensoropt.reschedule.mesh import Mesh
from tensoropt.sharding.resharding import PathFinder
from tensoropt.sharding.strategy import StrategyView


@cache
def model() -> zoo.Recorded:
    return zoo.record(zoo.windows, next(iter(zoo.HYPERPARAMETERS)))


@pytest.mark.parametrize("seed", range(6))
def test_split_windows_give_one_device_numbers(seed: int) -> None:
    """The collectives executed are those charged, halos among them."""
    mesh = (Mesh.of(4), Mesh.of(3), Mesh.of(2, 2))[seed % 3]
    view = random_strategy(model(), mesh, 70 + seed, slides)
    engine = engine_of(model(), view, random_router(seed), EmulatedBackend(mesh))
    train_and_check(engine, model())
    assert_variables(model(), view, local_shards(engine))
    log = engine.function(training_fetch(model()), tuple(feeds_of(model().graph, model().batches[0]))).log
    assert {"halo", "halo_sum"} <= {kind for kind, _, _ in executed(log)}


def test_a_plan_keeps_its_exchanges(tmp_path: Path) -> None:
    view = random_strategy(model(), Mesh.of(4), 90, slides)
    plan = plan_of_view(view)
    assert any(resharding.halo is not None and resharding.backward is not None for resharding in plan.reshardings)
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded.reshardings == plan.reshardings and "halo(" in loaded.table()
    check_reshardings(view, loaded.stages[0])


def plan_of_view(view: StrategyView) -> Plan:
    """A plan without a search: costs are left out."""
    path_finder = PathFinder(Link())
    reshardings = []
    for entry in cost_entries(view):
        paths = path_finder.paths(entry.resharding)
        if not paths.is_free:
            planned = PlannedResharding(
                tensor=entry.tensor, consumers=entry.consumers, sharding=entry.resharding.sharding,
                is_shared=entry.is_shared, forward=paths.forward, backward=paths.backward, time_us=0.0,
                reduction=entry.resharding.reduction,
            )
            reshardings.append(planned)
    graph, strategy = view.graph, view.strategy
    operators = [
        PlannedOperator(name, graph.operators[name].type, strategy.configs[name], interface.results, 0, 0.0)
        for name, interface in view.interfaces.items()
    ]
    stage = StagePlan(
        mesh=strategy.mesh, devices=tuple(range(strategy.mesh.n_devices)), operators=tuple(operators),
        reshardings=tuple(reshardings), sum_bytes=0, time_us=0.0, compute_time_us=0.0, model_digest=graph.digest,
    )
    return Plan(stages=(stage,), mesh=stage.mesh, time_us=0.0, model_digest=graph.digest, exact=False, option="mini_time")
