"""Errors of simulated steps against measured ones, and of sums beside them, on plans whose steps are measured in turn.

    tensoropt run -n 2 tests/benchmarks/simulated_error.py [--models vgg16,rnn] [--random 14] [--frontier 5] [--turns 5]
    tests/benchmarks/two_machines.sh tests/benchmarks/simulated_error.py --models vgg16

``cost_error.py`` measures one plan after the other, and a machine whose speed drifts meanwhile puts them out of order. Here
all plans of a model exist side by side and take a few steps each, again and again; a plan's step is the median of its steps.
Plans, their predictions and ``--hardware``, ``--budget`` are those of ``cost_error.py``.

*Error* is the mean of |predicted - measured| / measured, *tau* Kendall's. *Again* is the tau between the medians of the
first and of the second half of the turns: no prediction can be expected to keep an order that the machine itself doesn't.
*Apart* is the tau of the pairs of plans whose measured steps are more than 2 % apart, and how many pairs that are.
*Reachable* is the tau that a prediction of the true medians would have had: the mean tau of the medians with those of turns
that were drawn again from the measured ones (a bootstrap).

``--json`` writes the predictions, the plans, their compute and network times and all measured steps.
"""

from __future__ import annotations

import argparse
import json
import os
from itertools import combinations

os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")

import numpy as np
from cost_error import Speed, parser_of, planned, recorded_of
from scipy.stats import kendalltau
from tabulate import tabulate

from tensoropt.profiling.hardware import Hardware
from tensoropt.runtime.execute import MPI
from tensoropt.runtime.measuring.local_hardware import hardware_here, prepared_processes
from tensoropt.runtime.ranks import Processes
from tensoropt.tuning.interleaved_timing import COUNTED, interleaved_seconds

PREDICTIONS = ("simulated", "sum")
APART = 0.02


def measured(name: str, hardware: Hardware, processes: Processes, arguments: argparse.Namespace) -> dict[str, list]:
    """Return of each plan its kind, its predicted seconds and those of all its steps; every rank must call it."""
    recorded = recorded_of(name)
    choices, _ = planned(recorded, hardware, processes, arguments, Speed(processes))
    plans = [choice.plan for choice in choices]
    seconds = interleaved_seconds(plans, recorded.model, recorded.first_values, processes, MPI, arguments.turns)
    return {
        "kind": [choice.kind for choice in choices],
        "simulated": [choice.simulated_us / 1e6 for choice in choices],
        "sum": [(plan.compute_time_us + plan.network_time_us) / 1e6 for plan in plans],
        "steps": seconds.T.tolist(),
        "compute": [plan.compute_time_us / 1e6 for plan in plans],
        "network": [plan.network_time_us / 1e6 for plan in plans],
        "plan": [plan.to_json() for plan in plans],
    }


def reachable_tau(steps: np.ndarray, n_draws: int = 500) -> float:
    """Return the mean tau of the plans' medians with medians of turns that are drawn again, [plans, turns * COUNTED]."""
    rng = np.random.default_rng(0)
    turns = steps.reshape(len(steps), -1, COUNTED)
    found, n_turns = np.median(steps, axis=1), turns.shape[1]
    drawn = ([np.median(each[rng.integers(n_turns, size=n_turns)]) for each in turns] for _ in range(n_draws))
    return float(np.mean([kendalltau(each, found).statistic for each in drawn]))


def tau_apart(predicted: np.ndarray, found: np.ndarray) -> tuple[float, int]:
    """Return Kendall's tau of the pairs whose measured values are more than ``APART`` apart, and how many pairs that are."""
    apart = [(a, b) for a, b in combinations(range(len(found)), 2) if abs(np.log(found[a] / found[b])) > np.log1p(APART)]
    agree = [np.sign((predicted[a] - predicted[b]) * (found[a] - found[b])) for a, b in apart]
    return float(np.mean(agree)), len(apart)


def row(name: str, values: dict[str, list]) -> list[str]:
    """Return a line of the table."""
    steps = np.array(values["steps"])
    found = np.median(steps, axis=1)
    half = steps.shape[1] // COUNTED // 2 * COUNTED
    halves = (np.median(each, axis=1) for each in (steps[:, :half], steps[:, half:]))
    cells = [name, str(len(found)), f"{found.min() * 1e3:.0f} to {found.max() * 1e3:.0f}"]
    for each in PREDICTIONS:
        predicted = np.array(values[each])
        apart, n_pairs = tau_apart(predicted, found)
        cells.append(f"{np.mean(np.abs(predicted / found - 1)):.1%}")
        cells += [f"{kendalltau(predicted, found).statistic:.2f}", f"{apart:.2f} of {n_pairs}"]
    return [*cells, f"{kendalltau(*halves).statistic:.2f}", f"{reachable_tau(steps):.2f}"]


def main() -> None:
    parser = parser_of(__doc__, 14, 5, "15s")
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    processes = prepared_processes()
    hardware = Hardware.load(arguments.hardware) if arguments.hardware else hardware_here(processes)
    rows, everything = [], {}
    for name in arguments.models.split(","):
        everything[name] = measured(name, hardware, processes, arguments)
        rows.append(row(name, everything[name]))
        if processes.rank == 0:
            columns = (everything[name][each] for each in ("kind", *PREDICTIONS, "steps"))
            for kind, *rest, steps in zip(*columns, strict=True):
                told = ", ".join(f"{1e3 * seconds:.1f}" for seconds in (*rest, np.median(steps)))
                print(f"{name} {kind}: {', '.join(PREDICTIONS)}, measured: {told} ms", flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps(everything))
    if processes.rank == 0:
        titles = [f"{each}: {what}" for each in PREDICTIONS for what in ("error", "tau", "apart")]
        print(tabulate(rows, ["model", "plans", "measured ms", *titles, "again", "reachable"], disable_numparse=True))


if __name__ == "__main__":
    main()
