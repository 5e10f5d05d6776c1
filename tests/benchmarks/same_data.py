"""Time steps with and without the digests by which ranks notice that they were fed different data, interleaved.

    mpirun -n 2 python tests/benchmarks/same_data.py
    mpirun -n 2 python tests/benchmarks/same_data.py --big

The digits' CNN of ``examples/train_digits.py``, or images of 224 by 224 through one convolution. Rank 0 prints both times
of a step, their ratio, and the time of a comparison by itself, per step: not every step has one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from harness import Timing, alternate, ratio
from tabulate import tabulate

import tensoropt
from tensoropt.runtime.same_data import PERIOD, SameData, digest
from tensoropt.session.session import current_session

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
from train_digits import create_model


def feeds_of(is_big: bool, batch: int) -> tuple[object, dict[object, np.ndarray]]:
    """Return a training step and a batch for it."""
    rng = np.random.default_rng(0)
    shape = [batch, 224, 224, 3] if is_big else [batch, 8, 8, 1]
    x, y = tensoropt.placeholder("float32", shape=shape), tensoropt.placeholder("float32", shape=[batch, 10])
    if is_big:
        kernel = tensoropt.get_variable("kernel", shape=[7, 7, 3, 16])
        h = tensoropt.nn.relu(tensoropt.nn.conv2d(x, kernel, 4, "SAME"))
        logits = tensoropt.matmul(tensoropt.reduce_mean(h, [1, 2]), tensoropt.get_variable("w", shape=[16, 10]))
        loss = tensoropt.softmax_cross_entropy(y, logits)
    else:
        loss, _ = create_model(x, y)
    train_op = tensoropt.GradientDescentOptimizer(0.01).minimize(loss)
    labels = np.eye(10, dtype=np.float32)[rng.integers(10, size=batch)]
    return train_op, {x: rng.random(shape, dtype=np.float32), y: labels}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--big", action="store_true", help="images of 224 by 224")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=10 * PERIOD, help="a round (default %(default)s)")
    arguments = parser.parse_args()
    session = tensoropt.init(hardware="v100-1x2")
    train_op, feeds = feeds_of(arguments.big, arguments.batch)
    tensoropt.build_execution_graph(engine="tensorflow", plan=tensoropt.find_strategy(option="mini_time"))
    checking = current_session()._same_feeds
    assert checking is not None

    def steps(with_digests: SameData | None) -> Callable[[], None]:
        def run() -> None:
            session._same_feeds = with_digests
            for _ in range(arguments.steps):
                tensoropt.run(train_op, feeds)

        return run

    timed, plain = (each.divided(arguments.steps) for each in alternate([steps(checking), steps(None)], arguments.rounds))
    alone = Timing(tuple(_comparison_s(session, feeds) / PERIOD for _ in range(50)))
    if session.processes.rank == 0:
        columns = ["per step", "with digests", "without", "ratio (quartiles)", "of a comparison, us", "its share"]
        low, middle, high = np.percentile(np.multiply(alone.seconds, 1e6), [25, 50, 75])
        spread = f"{middle:.2f} ({low:.2f} to {high:.2f})"
        share = f"{alone.median / plain.median:.2%}"
        rows = [["images" if arguments.big else "digits", timed, plain, ratio(timed, plain), spread, share]]
        print(tabulate([[str(each) for each in row] for row in rows], columns))


def _comparison_s(session: object, feeds: dict[object, np.ndarray]) -> float:
    processes = session.processes  # type: ignore[attr-defined]
    processes.barrier()
    start = time.perf_counter()
    processes.gather({str(key): digest(value) for key, value in feeds.items()})
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
