"""A training step on one rank against plain TensorFlow: nothing may be done that plain TensorFlow would not do.

    python tests/benchmarks/one_rank.py
"""

from __future__ import annotations

import argparse

from harness import alternate, plain_step, ratio, tensoropt_step
from models import MODELS
from tabulate import tabulate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=60)
    arguments = parser.parse_args()
    rows = []
    for model in MODELS:
        ours = tensoropt_step(model, arguments.batch)
        plain = plain_step(model, arguments.batch)
        timed, reference = alternate([ours, plain], arguments.rounds)
        rows.append([model.name, str(timed), str(reference), ratio(timed, reference)])
    print(tabulate(rows, ["model", "TensorOpt, one rank", "plain TensorFlow", "ratio (quartiles)"]))


if __name__ == "__main__":
    main()
