"""Find the strategies that other algorithms choose, under the same costs.

Each algorithm is a module with a function ``search(task) -> BaselineResult`` (see :mod:`.task`). Each has a space of
its own, within which its result is exact; OptCNN's is the space that the frontier is searched in.

| name | module | result |
|---|---|---|
| ``data-parallel`` | :mod:`.data_parallel` | one point |
| ``one-weird-trick`` | :mod:`.one_weird_trick` | one point |
| ``optcnn`` | :mod:`.optcnn` | one point: the least time |
| ``tofu`` | :mod:`.tofu` | one point: every tensor split over all devices |
| ``mesh-tensorflow`` | :mod:`.mesh_tensorflow` | a frontier: each logical dimension is split the same way everywhere |
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .task import BaselineResult, BaselineTask

BASELINES = ("data-parallel", "one-weird-trick", "optcnn", "tofu", "mesh-tensorflow")
MONTE_CARLO, FT_SIMULATED, MONTE_CARLO_SECONDS = "mcmc", "ft-simulated", 60.0
BY_SIMULATION = (MONTE_CARLO, FT_SIMULATED)
"""FlexFlow's search, :mod:`..flexflow.monte_carlo`, and the same from the frontier on: their cost is the simulated step, so
they aren't searches under the same costs."""
OTHERS = (*BASELINES, *BY_SIMULATION)
"""The algorithms that decide by themselves what is split: they take no ``force``, micro-batches or objectives."""
SPACES = MappingProxyType(
    {
        "data-parallel": "data-parallel: one strategy, which splits the batch everywhere",
        "one-weird-trick": "one-weird-trick: one strategy, which splits dense layers by output, all else by batch",
        "tofu": "tofu: all tensors split over all devices, axis by axis",
        "mesh-tensorflow": "mesh-tensorflow: each logical dimension split the same way everywhere",
    }
)
"""The spaces of the baselines that have their own, in words."""


def search_baseline(task: BaselineTask, algorithm: str) -> BaselineResult:
    """Return the answer of one of BASELINES to a task.

    Raises:
        ValueError: there is no such baseline.
        InfeasibleError: the baseline has no strategy.
    """
    if algorithm not in BASELINES:
        raise ValueError(f"unknown baseline {algorithm!r}; choose one of {', '.join(BASELINES)}")
    answer: BaselineResult = importlib.import_module(f".{algorithm.replace('-', '_')}", __name__).search(task)
    return answer if algorithm not in SPACES else replace(answer, built=replace(answer.built, space=algorithm))
