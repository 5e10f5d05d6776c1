"""Random Keras models under random plans against plain Keras on one device.

    python tests/benchmarks/random_models.py [--cases 1000] [--first 0] [--seed N] [--jobs 2]

Each seed is a model with one or two inputs and results, a loss, an optimizer, two or three batches, and a plan for 2 to 6
emulated devices: any strategy, or what the search finds by ``force``, within a memory limit, or anywhere on the frontier; in
micro-batches, and without some choices. Losses, metrics, weights, moving statistics, the optimizer's variables and
predictions are held to those of plain Keras (tests/random_models/running.py). A case that is wrong or fails is printed with
its seed, by which ``--seed`` runs it alone. The exit code is 1 if there is such a case.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TENSOROPT_QUIET", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from helpers.switches import graphs_as_built
from random_models.drawing import drawn
from random_models.running import NOT_BY_KERAS, REFUSED, ROUNDING, SAME, UNSTABLE, Outcome, run
from tabulate import tabulate
from tqdm import tqdm

CASES_OF_A_PROCESS, COLLECTED_AFTER = 40, 10
COUNTED_APART = (REFUSED, NOT_BY_KERAS, ROUNDING, UNSTABLE)


def table(outcomes: list[Outcome]) -> str:
    """Return a table of how many cases had each outcome, with refusals by reason."""
    kinds = Counter(outcome.kind for outcome in outcomes)
    reasons = Counter((outcome.kind, outcome.reason_in_general) for outcome in outcomes if outcome.kind == REFUSED)
    rows: list[tuple[str, str, str]] = []
    for kind in (SAME, *COUNTED_APART, *sorted(kinds.keys() - {SAME, *COUNTED_APART})):
        rows.append((kind, str(kinds[kind]), f"{100 * kinds[kind] / len(outcomes):.1f} %"))
        rows += [(f"  {reason}", str(n), "") for (of, reason), n in reasons.most_common() if of == kind]
    rows.append(("all", str(len(outcomes)), ""))
    return tabulate(rows, ("outcome", "cases", "share"), disable_numparse=True, colalign=("left", "right", "right"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    parser.add_argument("--seed", type=int, help="run the case of this seed only, and print it")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes that run cases at once")
    given = parser.parse_args()
    first, count = (given.first, given.cases) if given.seed is None else (given.seed, 1)
    seeds = range(first, first + count)
    parts = [seeds[start : start + CASES_OF_A_PROCESS] for start in range(0, count, CASES_OF_A_PROCESS)]
    outcomes: list[Outcome] = []
    # Each case leaves some memory allocated, so that a process ends after a few.
    with multiprocessing.get_context("spawn").Pool(given.jobs, maxtasksperchild=1) as pool:
        for part in tqdm(pool.imap_unordered(outcomes_of, parts), total=len(parts), unit="part", disable=None):
            outcomes += (outcome for outcome, _ in part)
            for outcome, seconds in part:
                if given.seed is not None or outcome.kind != SAME:
                    print(f"{outcome} [{seconds:.1f} s]", flush=True)
            print(f"{len(outcomes)} of {count} cases", file=sys.stderr, flush=True)
    print(table(outcomes))
    return int(any(outcome.is_fault for outcome in outcomes))


def outcomes_of(seeds: Sequence[int]) -> list[tuple[Outcome, float]]:
    """Run cases in this process; return their outcomes and how many seconds each took."""
    found = []
    with graphs_as_built():
        for seed in seeds:
            started = time.perf_counter()
            found.append((run(drawn(seed)), time.perf_counter() - started))
            if len(found) % COLLECTED_AFTER == 0:
                gc.collect()
    return found


if __name__ == "__main__":
    sys.exit(main())
