"""Compare the compact space with the full one: times found, and seconds of search, nothing regathered or rematerialized.

    python tests/benchmarks/spaces.py [MODEL@CLUSTER ...]

``above`` is the gap of the compact frontier to the full one, defined as for a certificate: by what share each point of the
full frontier (or of its lower bound, where it isn't exact) is better than the nearest point of the compact frontier, in both
costs.
"""

from __future__ import annotations

import argparse
import os
import time

import numpy as np
from tabulate import tabulate

from tensoropt.ft import Budget, LowerBound

DEFAULT = ("lenet5@v100-1x4", "lenet5@v100-1x8", "alexnet@v100-1x4", "vgg16@v100-1x4", "vgg16@v100-1x8")
HEADERS = ("model", "devices", "space", "nodes", "configs", "points", "result", "seconds", "above: median", "worst")


def rows(what: str, seconds: float) -> list[list[str]]:
    """Search both spaces of one model; return two lines of the table."""
    from tensoropt.profiling.hardware import named
    from tensoropt.search.frontiers.find_frontier import find_frontier
    from tensoropt.search.problem.config_space import SPACES
    from tensoropt.search.request import Request
    from tensoropt.tools.offline import record_named

    name, _, cluster = what.partition("@")
    model, hardware = record_named(f"zoo:{name}").model, named(cluster)
    lines, least = [], None
    for space in SPACES:
        start = time.perf_counter()
        budget, without = Budget(seconds=seconds), frozenset({"reuse", "remat"})
        asked = Request(model, hardware, None, space=space, budget=budget, without=without)
        frontier = find_frontier(asked, hardware.n_devices)
        took, found, built = time.perf_counter() - start, frontier.found, frontier.built
        above = ["", ""]
        if least is None:
            least = found.bound or LowerBound(found.mem_bytes, found.time_ns, "full space")
        else:
            gaps = least.gaps(found.mem_bytes, found.time_ns)
            above = [f"{float(value):.2%}" for value in (np.median(gaps), gaps.max())]
        result = "exact" if found.exact else f"gap {found.worst_gap:.2%}"
        numbers = map(str, (len(built.problem.nodes), built.n_configs, len(found)))
        lines.append([name, str(hardware.n_devices), space, *numbers, result, f"{took:.2f}", *above])
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=DEFAULT, metavar="MODEL@CLUSTER")
    parser.add_argument("--seconds", type=float, default=30.0, help="for refining; default: 30")
    given = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    lines = [line for case in given.cases for line in rows(case, given.seconds)]
    print(tabulate(lines, HEADERS, disable_numparse=True, colalign=("left", "right", "left", *["right"] * 7)))


if __name__ == "__main__":
    main()
