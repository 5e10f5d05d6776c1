"""Check that the parts of a plan belong together."""

from __future__ import annotations

from ..common.errors import InputError
from ..sharding.resharding import PlainCosts
from ..sharding.strategy import StrategyView
from .build import cost_entries
from .stage_plan import StagePlan


def check_reshardings(view: StrategyView, stage: StagePlan) -> None:
    """Check that a stage's reshardings and rematerialized operators follow from its configs: its file may have been changed.

    Raises:
        InputError: they don't.
    """
    names = sorted(view.strategy.rematerialized - view.rematerialized)
    if names:
        op = view.graph.operators[names[0]]
        raise InputError(
            f"the plan computes {op.where()} again, which can't be done with the config "
            f"'{view.strategy.configs[op.name]}'; it was changed: find the strategy again"
        )
    path_finder = stage.path_finder(PlainCosts())
    expected = {
        (row.tensor, row.consumers, row.sharding, row.is_shared, row.is_regathered, row.n_runs)
        for entry in cost_entries(view)
        if (row := entry.planned(path_finder)) is not None
    }
    actual = {(d.tensor, d.consumers, d.sharding, d.is_shared, d.is_regathered, d.n_runs) for d in stage.reshardings}
    if expected != actual:
        tensor, consumers, sharding, *flags = min(expected ^ actual, key=str)
        difference = "lacks" if (tensor, consumers, sharding, *flags) in expected else "has, against its configs,"
        raise InputError(
            f"the plan {difference} the resharding of {tensor} to {', '.join(consumers)} as {sharding}; it was changed: "
            "find the strategy again, with force= for what should differ"
        )
