"""Every member of every family of ``keras.applications``, and the small models under more strategies, against plain Keras.

    python tests/benchmarks/all_models.py [NAME ...] [--seeds 0 1 ...]

Each is captured and planned for four devices, and two training steps by a random strategy on four emulated devices are held
to plain Keras in float64 to 1e-9: losses, gradients, parameters, moving averages. ``replicated`` names the operator types of
a training step that no rule splits. All of it takes hours; names choose some.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import keras
import tensorflow as tf
from execution.strategies import random_router, random_strategy
from models.catalog import SMALL, Entry, application
from models.training import by_strategy, case_of, differences, floats

from tensoropt.frontier import find_frontier
from tensoropt.ir import Graph
from tensoropt.profiling.hardware import resolve
from tensoropt.reschedule.mesh import Mesh
from tensoropt.rules.registry import rule_of

TOLERANCE = 1e-9
LEAST_SIZES = {"InceptionV3": 75, "InceptionResNetV2": 75, "Xception": 71}
COLUMNS = ("model", "operators", "capture", "planning", "steps", "differ", "replicated")


def members() -> dict[str, Entry]:
    """Every model that ``keras.applications`` has, on the smallest images that it takes."""
    names = [name for name, made in vars(keras.applications).items() if inspect.isfunction(made)]
    return {name: application(name, LEAST_SIZES.get(name, 32)) for name in sorted(names)}


def replicated(graph: Graph) -> list[str]:
    """The types of the operators in training steps that no rule splits."""
    operators = (op for op in graph.step_operators if op.updates is None)
    return sorted({op.type for op in operators if rule_of(op).without})


def row(name: str, entry: Entry, seed: int) -> tuple[object, ...]:
    """What holding one model came to: a line of the table."""
    started = time.perf_counter()
    with floats("float64"):
        case = case_of(entry)
        captured = time.perf_counter()
        find_frontier(case.model, resolve("v100-1x4"), 4).fastest()
        planned = time.perf_counter()
        view = random_strategy(case, Mesh.of(2, 2), seed)
        off = differences(case, by_strategy(case, view, random_router(seed)), TOLERANCE)
    seconds = (captured - started, planned - captured, time.perf_counter() - planned)
    return (name, len(case.graph.operators), *(f"{each:.1f} s" for each in seconds), len(off) or "none",
            ", ".join(replicated(case.graph)) or "none")


def main() -> None:
    every = {**SMALL, **members()}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(every), metavar="NAME", help=f"of {', '.join(every)}")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    given = parser.parse_args()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|", flush=True)
    for name in given.names:
        for seed in given.seeds:
            print("| " + " | ".join(map(str, row(name, every[name], seed))) + " |", flush=True)
            gc.collect()


if __name__ == "__main__":
    main()
