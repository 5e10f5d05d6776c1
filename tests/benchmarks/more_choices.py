"""Show by how much a frontier with more choices is above one with fewer, for each pair of sets of choices.

    python tests/benchmarks/more_choices.py [--gap 1] [--seconds 2] [MODEL[:SIZE=N,...]@CLUSTER ...]

``above`` is the least e such that for each point with fewer choices one with more is within 1 + e in both costs: 0 where
more choices are nowhere worse. A search that isn't exact may miss by its gap, which is printed beside.
"""

from __future__ import annotations

import argparse
import os
from itertools import chain, combinations

import numpy as np
from tabulate import tabulate

from tensoropt import zoo
from tensoropt.ft import Budget, Frontier
from tensoropt.plan.find_frontier import find_frontier
from tensoropt.profiling.hardware import named
from tensoropt.search.problem.choices import REMAT, REUSE, ZERO
from tensoropt.tools.offline import record

ALL = (REUSE, REMAT, ZERO)
DEFAULT = ("rnn@v100-1x4", "transformer@v100-1x4")


def frontiers(what: str, budget: Budget) -> dict[frozenset[str], Frontier]:
    """Return the frontier of a model with each set of choices."""
    name, _, cluster = what.partition("@")
    model, hardware = record(zoo.sized(name), name).model, named(cluster)
    sets = [frozenset(each) for each in chain(*(combinations(ALL, n) for n in range(len(ALL) + 1)))]
    return {
        chosen: find_frontier(model, hardware, hardware.n_devices, budget=budget, without=set(ALL) - chosen).certified
        for chosen in sets
    }


def above(one: Frontier, other: Frontier) -> float:
    """Return the least e such that each point of the one frontier has one of the other within 1 + e of it."""
    factors = [of[None] / np.maximum(to[:, None], 1) for of, to in _costs(one, other)]
    return max(0.0, float(np.maximum(*factors).min(axis=1).max()) - 1)


def _costs(one: Frontier, other: Frontier) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(other.mem_bytes, one.mem_bytes), (other.time_ns, one.time_ns)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=DEFAULT, metavar="MODEL[:SIZE=N,...]@CLUSTER")
    parser.add_argument("--gap", type=float, default=1.0, help="in percent, that is small enough to stop; default: 1")
    parser.add_argument("--seconds", type=float, default=2.0, help="for refining; default: 2")
    given = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    rows = []
    for case in given.cases:
        found = frontiers(case, Budget(seconds=given.seconds, gap=given.gap / 100))
        for more, other in found.items():
            for fewer, one in found.items():
                if fewer < more:
                    names = [" ".join(name for name in ALL if name in chosen) or "none" for chosen in (fewer, more)]
                    rows.append([case, *names, f"{above(one, other):.2%}", f"{other.worst_gap:.2%}"])
                    case = ""
    headers = ("model", "choices", "and more", "above", "gap")
    print(tabulate(rows, headers, disable_numparse=True, colalign=("left", "left", "left", "right", "right")))


if __name__ == "__main__":
    main()
