"""What compiled kernels count of one strategy."""

from __future__ import annotations

import numpy as np

from tensoropt.program.fast_peak import Columns, Peaks
from tensoropt.program.memory.pass_memory import PassMemory
from tensoropt.program.stage_ends import StageEnds
from tensoropt.sharding.strategy import StrategyView


def columns_of(peaks: Peaks, view: StrategyView) -> Columns:
    """Return a strategy as columns of one number each."""
    assert peaks.is_quick
    strategy, one = view.strategy, np.ones(1, np.int32)
    return Columns(
        1,
        {name: one * peaks.rows.config_number(config) for name, config in strategy.configs.items()},
        {name: one * peaks.rows.sharding_number(each) for name, each in strategy.shared.items()},
        dict.fromkeys(strategy.regathered, one),
        dict.fromkeys(strategy.rematerialized, one),
    )


def peak_bytes(peaks: Peaks, view: StrategyView) -> int:
    """Return the most bytes that are alive at once under a strategy."""
    return int(peaks.of_columns(columns_of(peaks, view), lambda _: view)[0])


def passes(peaks: Peaks, view: StrategyView, ends: StageEnds) -> PassMemory:
    """Return the bytes that are alive in a stage's passes under a strategy."""
    return peaks.passes_of_columns(columns_of(peaks, view), lambda _: view, ends)
