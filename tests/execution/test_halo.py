"""Plans of models whose windows slide over split heights and widths keep their exchanges."""

from __future__ import annotations

from pathlib import Path

from helpers import zoo
from helpers.strategies import random_strategy, slides
from random_models.planning import as_plan

from tensoropt.plan.build import check_reshardings
from tensoropt.plan.plan import Plan
from tensoropt.profiling.hardware import named


def test_a_plan_keeps_its_exchanges(tmp_path: Path) -> None:
    model, hardware = zoo.record(zoo.windows, "sgd"), named("v100-1x4")
    view = random_strategy(model, hardware.mesh(4), 90, slides)
    plan = as_plan(view, 0, model.model, hardware)
    assert any(resharding.halo is not None and resharding.backward is not None for resharding in plan.reshardings)
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded.reshardings == plan.reshardings and "halo(" in loaded.table()
    check_reshardings(view, loaded.stages[0])
