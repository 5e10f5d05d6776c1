"""A model held against plain Keras: by one strategy, or as a program by all that tests hold it by.

    python -m models.all_strategies NAME [STRATEGY ...]

in the folder ``tests``: prints what differs and how long each strategy took; the exit code is 1 if something differs.
"""

from __future__ import annotations

import gc
import os
import sys
import time
import warnings
from functools import lru_cache

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TENSOROPT_CACHE", "off")

import keras
from helpers.searches import Plans, find_frontier, plans_of
from helpers.strategies import random_router, random_strategy
from helpers.switches import floats, graphs_as_built

from models.catalog import SMALL
from models.training import Case, by_strategy, case_of, differences, sgd, without_gradient
from tensoropt.profiling.hardware import resolve
from tensoropt.reschedule.mesh import Mesh
from tensoropt.sharding.resharding import PlainCosts

TOLERANCES = {"float64": 1e-9, "float32": 1e-4}
OPTIMIZERS = {"sgd": sgd, "adam": lambda: keras.optimizers.Adam(0.001)}
N_RANDOM = 2
MESHES = (Mesh.of(2, 2), Mesh.of(2, 2), Mesh.of(2, 3), Mesh.of(2))
"""The meshes of random strategies: the strategy of seed i has the i-th."""
PLANS = ("fastest", "smallest")
STRATEGIES = (*map(str, range(N_RANDOM)), *PLANS)
MOST_TOLD = 20


@lru_cache(maxsize=1)
def _case(name: str, dtype: str, optimizer: str) -> Case:
    gc.collect()
    with floats(dtype), warnings.catch_warnings():
        # The functions of models that are held one after the other look to TensorFlow like one that changes.
        warnings.filterwarnings("ignore", ".*triggered tf.function retracing")
        return case_of(SMALL[name], OPTIMIZERS[optimizer])


@lru_cache(maxsize=1)
def _frontier(name: str, dtype: str) -> Plans:
    return plans_of(find_frontier(_case(name, dtype, "sgd").model, resolve("v100-1x4"), 4))


def differing(name: str, strategy: str, dtype: str = "float64", optimizer: str = "sgd") -> list[str]:
    """Differences from plain Keras under a strategy: a seed of a random one, or one of ``PLANS``."""
    case = _case(name, dtype, optimizer)
    if strategy in PLANS:
        frontier = _frontier(name, dtype)
        plan = frontier.fastest() if strategy == "fastest" else frontier.smallest()
        view = case.model.view(plan.stages[0].strategy)
        path_finder = plan.stages[0].path_finder(PlainCosts())
    else:
        seed = int(strategy)
        view = random_strategy(case, MESHES[seed % len(MESHES)], seed)
        path_finder = random_router(seed)
    with floats(dtype):
        found = by_strategy(case, view, path_finder)
        return differences(case, found, TOLERANCES[dtype], without_gradient(case) if optimizer == "adam" else ())


def main(name: str, *strategies: str) -> int:
    is_off = False
    for strategy in strategies or STRATEGIES:
        started = time.perf_counter()
        with graphs_as_built():
            off = differing(name, strategy)
        told = f"{name} by {strategy}: {len(off)} tensors differ; {time.perf_counter() - started:.0f} s"
        print("\n".join([told, *off[:MOST_TOLD]]), flush=True)
        is_off |= bool(off)
    return int(is_off)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
