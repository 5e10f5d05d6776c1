"""Find the strategies that other algorithms choose, under the same costs.

Each algorithm is a module with a function ``search(task) -> BaselineResult`` (see :mod:`..task`). Each has a space of
its own, within which its result is exact; OptCNN's is the space that the frontier is searched in.

| name | module | result |
|---|---|---|
| ``data-parallel`` | :mod:`.data_parallel` | one point |
| ``one-weird-trick`` | :mod:`.one_weird_trick` | one point |
| ``optcnn`` | :mod:`.optcnn` | one point: the least time |
| ``tofu`` | :mod:`.tofu` | one point: every tensor split over all devices |
| ``unsplit`` | :mod:`.unsplit` | one point: nothing is split |
| ``mesh-tensorflow`` | :mod:`.mesh_tensorflow` | a frontier: each logical dimension is split the same way everywhere |
"""

from __future__ import annotations

import importlib
from dataclasses import replace

from ..algorithms import BASELINES, SPACES, UNSPLIT
from ..task import BaselineResult, BaselineTask


def search_baseline(task: BaselineTask, algorithm: str) -> BaselineResult:
    """Return the answer of one of BASELINES, or UNSPLIT, to a task.

    Raises:
        ValueError: there is no such baseline.
        InfeasibleError: the baseline has no strategy.
    """
    if algorithm not in (*BASELINES, UNSPLIT):
        raise ValueError(f"unknown baseline {algorithm!r}; choose one of {', '.join(BASELINES)}")
    answer: BaselineResult = importlib.import_module(f".{algorithm.replace('-', '_')}", __name__).search(task)
    return answer if algorithm not in SPACES else replace(answer, built=replace(answer.built, space=algorithm))
