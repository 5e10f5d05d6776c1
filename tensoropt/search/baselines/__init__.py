"""What others choose, under the same costs: one algorithm a module, each ``search(task) -> Answer`` (see :mod:`.task`).

Each has a space of its own, within which its result is exact; OptCNN's is the one that the frontier is searched in.

| name | module | what it gives |
|---|---|---|
| ``data-parallel`` | :mod:`.data_parallel` | one point |
| ``one-weird-trick`` | :mod:`.one_weird_trick` | one point |
| ``optcnn`` | :mod:`.optcnn` | one point: the least time |
| ``tofu`` | :mod:`.tofu` | one point: every tensor split over all devices |
| ``mesh-tensorflow`` | :mod:`.mesh_tensorflow` | a frontier: a logical dimension is split the same way everywhere |
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .task import Answer, Task

BASELINES = ("data-parallel", "one-weird-trick", "optcnn", "tofu", "mesh-tensorflow")
SPACES = MappingProxyType(
    {
        "data-parallel": "data-parallel: one strategy, which splits the batch everywhere",
        "one-weird-trick": "one-weird-trick: one strategy, which splits dense layers by output, all else by batch",
        "tofu": "tofu: all tensors split over all devices, axis by axis",
        "mesh-tensorflow": "mesh-tensorflow: each logical dimension split the same way everywhere",
    }
)
"""In words, of those that have spaces of their own."""


def search_baseline(task: Task, algorithm: str) -> Answer:
    """What one of BASELINES answers to a task.

    Raises:
        ValueError: there is no such baseline.
        InfeasibleError: it has no strategy.
    """
    if algorithm not in BASELINES:
        raise ValueError(f"unknown baseline {algorithm!r}; choose one of {', '.join(BASELINES)}")
    answer: Answer = importlib.import_module(f".{algorithm.replace('-', '_')}", __name__).search(task)
    return answer if algorithm not in SPACES else replace(answer, built=replace(answer.built, space=algorithm))
