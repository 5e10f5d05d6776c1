"""Build the strategy that splits nothing: every device does the work of one device alone."""

from __future__ import annotations

from ...rules.rule import Config
from ..algorithms import UNSPLIT
from ..task import BaselineResult, BaselineTask, of_one_strategy


def search(task: BaselineTask) -> BaselineResult:
    """Return the one point at which nothing is split."""
    return of_one_strategy(task, {op.name: Config.unsplit(task.mesh) for op in task.operators}, UNSPLIT)
