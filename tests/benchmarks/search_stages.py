"""Show where the CPU seconds of a search go, by stage, each model in a process of its own.

    python tests/benchmarks/search_stages.py [--gap 1] [--seconds 2] [MODEL[:SIZE=N,...]@CLUSTER ...]

A stage's seconds are those of its functions (STAGES) less those of other stages that they call. Compiled code is loaded by
the stage that needs it first, and ``peak MB`` is by how much each stage raised the process's peak of resident memory.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from tabulate import tabulate

DEFAULT = ("rnn@v100-2x8", "transformer@v100-2x8", "wide_resnet@v100-2x8", "bert_large@v100-2x8", "vgg16@v100-2x8")
STAGES = {
    "costs of nodes": "search.problem.node_states:Evaluation.states",
    "problem without rematerialization": "search.problem.builder:ProblemBuilder.build",
    "problem with it": "search.problem.builder:ProblemBuilder.build_rematerializing",
    "plans of eliminations": "ft.weighted.elimination_plan:EliminationPlan.of",
    "lines: forward": "ft.weighted.passes:WeightedPass.__init__",
    "lines: strategies": "ft.weighted.passes:WeightedPass.least",
    "min-marginals": "ft.weighted.passes:WeightedPass.marginals",
    "choice of states": "ft.guided:Guide._promising",
    "presolve": "ft.guided:without_replaceable",
    "eliminations, frontier tables": "ft.guided:track",
    "exact eliminations first": "ft.search:_Search._tracked",
    "pruning": "ft.search:pruned",
    "strategies adopted": "plan.find_frontier:adopted",
    "exact by segment": "search.search_problem:frontier_within",
    "changes": "ft.nonadditive.local_search:Descent.improved",
    "peaks": "plan.point_peaks:PeakCounter.peaks_of",
    "plan": "plan.find_frontier:ModelFrontier.plan",
    "all else": "plan.find_frontier:find_frontier",
}


class Stages:
    """The CPU seconds, and the growth of the peak of resident memory in MB, of each stage."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.mb: defaultdict[str, float] = defaultdict(float)
        self._inner: list[tuple[float, float]] = [(0.0, 0.0)]  # of the stages that are running, what others in them took

    def measure(self, stage: str, where: str) -> None:
        """Add the calls of a function or method, named as in STAGES, to a stage."""
        module, _, path = where.partition(":")
        *owners, name = path.split(".")
        owner: Any = importlib.import_module(f"tensoropt.{module}")
        for each in owners:
            owner = getattr(owner, each)
        given = vars(owner)[name]
        function = given.__func__ if isinstance(given, classmethod) else given
        measured = self._measured(stage, function)
        setattr(owner, name, classmethod(measured) if isinstance(given, classmethod) else measured)

    def _measured(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*arguments: Any, **named: Any) -> Any:
            seconds, mb = time.process_time(), peak_mb()
            self._inner.append((0.0, 0.0))
            try:
                return function(*arguments, **named)
            finally:
                taken = time.process_time() - seconds, peak_mb() - mb
                inner, outer = self._inner.pop(), self._inner.pop()
                self._inner.append((outer[0] + taken[0], outer[1] + taken[1]))
                self.seconds[stage] += taken[0] - inner[0]
                self.mb[stage] += taken[1] - inner[1]

        return measured


def peak_mb() -> float:
    """Return the process's peak of resident memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def stages_of(case: tuple[str, float, float]) -> list[tuple[str, float, float]]:
    """Search once; return each stage's CPU seconds and MB, those of recording the model first."""
    what, seconds, gap = case
    name, _, cluster = what.partition("@")
    from tensoropt import zoo
    from tensoropt.tools.offline import record

    imported, before = time.process_time(), peak_mb()
    model = record(zoo.sized(name), name).model
    found = [("imports", imported, before), ("recording", time.process_time() - imported, peak_mb() - before)]
    from tensoropt.ft import Budget
    from tensoropt.profiling.hardware import named

    stages, hardware = Stages(), named(cluster)
    for stage, where in STAGES.items():
        stages.measure(stage, where)
    find_frontier = sys.modules["tensoropt.plan.find_frontier"].find_frontier
    frontier = find_frontier(model, hardware, hardware.n_devices, budget=Budget(seconds=seconds, gap=gap / 100))
    frontier.plan(frontier.found.fastest(), "mini_time")
    found += [(stage, stages.seconds[stage], stages.mb[stage]) for stage in STAGES]
    gap_text = "exact" if frontier.certified.exact else f"{frontier.certified.worst_gap:.2%}"
    return [*found, (f"all but imports and recording (gap {gap_text})", sum(stages.seconds.values()), peak_mb())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=DEFAULT, metavar="MODEL[:SIZE=N,...]@CLUSTER")
    parser.add_argument("--gap", type=float, default=1.0, help="in percent, that is small enough to stop; default: 1")
    parser.add_argument("--seconds", type=float, default=2.0, help="for refining; default: 2")
    given = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for case in given.cases:
            (rows,) = pool.map(stages_of, [(case, given.seconds, given.gap)])
            shown = [(stage, f"{seconds:.2f}", f"{mb:.0f}") for stage, seconds, mb in rows if seconds >= 0.005 or mb >= 1]
            print(tabulate(shown, (case, "CPU s", "peak MB"), disable_numparse=True, colalign=("left", "right", "right")))


if __name__ == "__main__":
    main()
