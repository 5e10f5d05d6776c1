"""Every member of every family of ``keras.applications``, and the small models under more strategies, against plain Keras.

    python tests/benchmarks/all_models.py [NAME ...] [--seeds 0 1 ...]

Each is captured and planned for four devices, and two training steps by a random strategy on four emulated devices are held
to plain Keras in float64 to 1e-9: losses, gradients, parameters, moving averages. ``replicated`` names the operator types of
a training step that no rule splits. A model that fails has a line that says why, and the table goes on; the exit code is 1
if one failed or differs. The whole table takes hours: give names to run some of the models.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import keras
from helpers.strategies import random_router, random_strategy
from helpers.switches import floats, graphs_as_built
from models.catalog import SMALL, Entry, application
from models.training import by_strategy, case_of, differences

from tensoropt.ir.graph import Graph
from tensoropt.profiling.hardware import resolve
from tensoropt.reschedule.mesh import Mesh
from tensoropt.rules.registry import rule_of
from tensoropt.search.candidates.plan_points import frontier_of_whole
from tensoropt.search.frontiers.find_frontier import find_frontier
from tensoropt.search.request import Request

TOLERANCE = 1e-9
LEAST_SIZES = {"InceptionV3": 75, "InceptionResNetV2": 75, "Xception": 71}
# On images this small the last normalisations average over the batch alone: see models/catalog.py.
BATCH = 8
COLUMNS = ("model", "operators", "capture", "planning", "steps", "differ", "replicated")


def members() -> dict[str, Entry]:
    """Return every model of ``keras.applications``, on the smallest images that it takes."""
    names = [name for name, made in vars(keras.applications).items() if inspect.isfunction(made)]
    return {name: application(name, LEAST_SIZES.get(name, 32), BATCH) for name in sorted(names)}


def replicated(graph: Graph) -> list[str]:
    """Return the types of the operators in training steps that no rule splits."""
    operators = (op for op in graph.step_operators if op.updates is None)
    return sorted({op.type for op in operators if rule_of(op).without})


@dataclass(frozen=True)
class Row:
    """The outcome of comparing one model with plain Keras."""

    cells: tuple[object, ...]
    is_right: bool

    def __str__(self) -> str:
        return "| " + " | ".join(map(str, self.cells)) + " |"


def held(name: str, entry: Entry, seed: int) -> Row:
    """Capture, plan and train a model, and compare it with plain Keras."""
    started = time.perf_counter()
    with floats("float64"):
        case = case_of(entry)
        captured = time.perf_counter()
        frontier_of_whole(find_frontier(Request(case.model, resolve("v100-1x4"), None), 4)).fastest()
        planned = time.perf_counter()
        view = random_strategy(case, Mesh.of(2, 2), seed)
        off = differences(case, by_strategy(case, view, random_router(seed)), TOLERANCE)
    seconds = (captured - started, planned - captured, time.perf_counter() - planned)
    cells = (len(case.graph.operators), *(f"{each:.1f} s" for each in seconds), f"{len(off)}: {off[0]}" if off else "none")
    return Row((name, *cells, ", ".join(replicated(case.graph)) or "none"), not off)


def row(name: str, entry: Entry, seed: int) -> Row:
    """Return a line of the table, also for a model that fails."""
    try:
        return held(name, entry, seed)
    except Exception as error:
        said = str(error).strip().partition("\n")[0].partition(". ")[0].replace("|", "/")
        return Row((name, f"{type(error).__name__}: {said}", *[""] * (len(COLUMNS) - 2)), False)


def main() -> int:
    every = {**SMALL, **members()}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(every)}")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in every]
    if unknown:
        parser.error(f"no model {', '.join(unknown)}; there are {', '.join(every)}")
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|", flush=True)
    all_right = True
    with graphs_as_built():
        for name in given.names or every:
            for seed in given.seeds:
                made = row(name, every[name], seed)
                print(made, flush=True)
                all_right &= made.is_right
                gc.collect()
    return 0 if all_right else 1


if __name__ == "__main__":
    sys.exit(main())
