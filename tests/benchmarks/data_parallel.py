"""The data-parallel plan on two ranks against plain TensorFlow on half the batch: what communication costs.

    tensoropt run -n 2 tests/benchmarks/data_parallel.py

Both ranks run both steps, alternating, with one thread each. "Half the batch" doesn't communicate: a step can't be faster.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")

from harness import DATA_PARALLEL, alternate, plain_step, ratio, tensoropt_step
from models import MODELS
from tabulate import tabulate

import tensoropt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=60)
    arguments = parser.parse_args()
    rows = []
    for model in MODELS:
        parallel = tensoropt_step(model, arguments.batch, DATA_PARALLEL)
        session = tensoropt.current_session()
        half = plain_step(model, arguments.batch // 2)
        timed, reference = alternate([parallel, half], arguments.rounds)
        rows.append([model.name, session.plan.n_collectives, str(timed), str(reference), ratio(timed, reference)])
    if session.processes.rank == 0:
        headers = ["model", "collectives", "data parallel, 2 ranks", "half the batch, plain", "ratio (quartiles)"]
        print(tabulate(rows, headers))


if __name__ == "__main__":
    main()
