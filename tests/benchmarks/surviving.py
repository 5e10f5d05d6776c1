"""Cut a ``fit`` short at random moments, go on with it on 1, 2 or 3 ranks in turn, and compare it with an undisturbed one.

Each seed draws the kind of data, how often it is saved, the moments, and the ranks of each start. Steps, validations and
ends of epochs are cut short, in one process whose ranks are emulated::

    python tests/benchmarks/surviving.py --seeds 200 --first 0
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from unittest.mock import patch

os.environ.setdefault("TENSOROPT_QUIET", "1")
sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

import numpy as np  # noqa: E402
from helpers.switches import floats  # noqa: E402
from survive.test_fit import Killed, result  # noqa: E402
from trainer.models import parallelized  # noqa: E402

import tensoropt  # noqa: E402

KINDS = ("arrays", "dataset", "generator", "py_dataset")
TOLERANCE = 1e-9


def disturbed(trainers: dict, kind: str, folder: Path, rng: np.random.Generator) -> tuple[tuple, list[int]]:
    """Return the result of a run that is cut short up to four times, and the ranks of its starts."""
    every, used = int(rng.integers(1, 7)), []
    for moment in [*map(int, rng.integers(1, 25, rng.integers(1, 5))), 0]:
        used.append(int(rng.integers(1, 4)))
        try:
            return result(trainers[used[-1]], kind, folder, moment, every), used
        except Killed:
            pass
    raise AssertionError("the last start isn't cut short")


def difference(got: tuple, expected: tuple) -> str:
    """Return what differs between two results; empty if nothing does."""
    if got[0] != expected[0] or got[5] != expected[5]:
        return f"epochs {got[0]}, {got[5]} updates"
    if [each[0] for each in got[2]] != [each[0] for each in expected[2]]:
        return f"steps {[each[0] for each in got[2]]}"
    for name, values in expected[1].items():
        if not np.allclose(got[1][name], values, rtol=TOLERANCE, atol=TOLERANCE):
            return f"{name} {got[1][name]}, expected {values}"
    pairs = zip(got[6], expected[6], strict=True)
    return "" if all(np.allclose(*pair, rtol=TOLERANCE, atol=TOLERANCE) for pair in pairs) else "weights"


def main() -> int:
    """Run the seeds, print those that differ, and return how many do."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    wrong, starts = 0, Counter[int]()
    tensoropt.Survive.writes_apart = False
    with floats("float64"), tempfile.TemporaryDirectory() as folder, patch("secrets.randbits", lambda n: 7):
        trainers = {n_ranks: parallelized(n_ranks=n_ranks) for n_ranks in (1, 2, 3)}
        expected = {kind: result(trainers[1], kind, Path(folder, kind)) for kind in KINDS}
        for seed in range(arguments.first, arguments.first + arguments.seeds):
            rng = np.random.default_rng(seed)
            kind = KINDS[rng.integers(len(KINDS))]
            got, used = disturbed(trainers, kind, Path(folder, str(seed)), rng)
            starts.update(used)
            said = difference(got, expected[kind])
            if said:
                wrong += 1
                print(f"seed {seed}: {kind} on {used} ranks differs: {said}", flush=True)
    by_ranks = ", ".join(f"{starts[n]} on {n}" for n in sorted(starts))
    print(f"{arguments.seeds} seeds, {sum(starts.values())} starts ({by_ranks}): {wrong} differ")
    return wrong


if __name__ == "__main__":
    raise SystemExit(bool(main()))
