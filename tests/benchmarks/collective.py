"""Compare a collective inside a TensorFlow graph with the same collective called by itself.

    tensoropt run -n 2 tests/benchmarks/collective.py [--keep]

The time per collective in the graph is the slope between functions with few and with many collectives. Each collective sums
the result of the one before it; with ``--keep`` all sum the same tensor, and their results are in memory at the same time.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")

import numpy as np
from harness import alternate
from tabulate import tabulate

from tensoropt.common.tensorflow_import import import_tensorflow

import_tensorflow()

import tensorflow as tf  # noqa: E402

from tensoropt.lowering.resharding.backends import CommunicatingBackend  # noqa: E402
from tensoropt.lowering.resharding.reshard import Resharder  # noqa: E402
from tensoropt.reschedule.layout import Layout  # noqa: E402
from tensoropt.reschedule.mesh import Mesh  # noqa: E402
from tensoropt.reschedule.path import cheapest_path  # noqa: E402
from tensoropt.rules.rule import OperandSharding  # noqa: E402
from tensoropt.runtime.collectives.mpi import MpiCommunicator  # noqa: E402
from tensoropt.runtime.ranks import current_processes  # noqa: E402
from tensoropt.sharding.resharding import PathFinder, PlainCosts, Resharding  # noqa: E402

FEW, MANY = 1, 9


def chained(
    backend: CommunicatingBackend, resharding: Resharding, count: int, shard: np.ndarray, keeps: bool
) -> Callable[[], object]:
    """Return a function that reshards a tensor ``count`` times, each by a callback, and returns all results or the last."""
    path_finder = PathFinder(PlainCosts(), cheapest_path)
    resharder = Resharder(backend)

    def body(x: tf.Tensor) -> list[tf.Tensor]:
        with resharder.building():
            results = [x]
            for _ in range(count):
                source = x if keeps else results[-1]
                results.append(resharder.reshard(resharding, path_finder.paths(resharding), [source], "benchmark")[0])
            return results[1:] if keeps else results[-1:]

    compiled = tf.function(body, input_signature=[tf.TensorSpec(shard.shape, tf.float32)], autograph=False)
    concrete, given = compiled.get_concrete_function(), tf.constant(shard)
    return lambda: concrete(given)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--keep", action="store_true", help="keep the results of all collectives")
    arguments = parser.parse_args()
    processes = current_processes()
    mesh = Mesh.of(processes.size)
    communicator = MpiCommunicator(processes.comm, mesh, processes.begin_collective)
    communicator.prepare([mesh.axes])
    backend = CommunicatingBackend(mesh, processes.rank, communicator)
    rows = []
    for n_bytes in (1 << 12, 1 << 16, 1 << 20, 1 << 24):
        shard = np.ones(n_bytes // 4, np.float32)
        resharding = Resharding(shard.shape, 4, Layout(mesh, ((),), mesh.axes), OperandSharding(Layout(mesh, ((),)), None))
        actions = [
            chained(backend, resharding, FEW, shard, arguments.keep),
            chained(backend, resharding, MANY, shard, arguments.keep),
            lambda shard=shard: communicator.all_reduce(mesh.axes, shard),
        ]
        few, many, alone = alternate(actions, arguments.rounds)
        in_graph_us = (many.median - few.median) / (MANY - FEW) * 1e6
        alone_us = alone.median * 1e6
        difference, times = f"{in_graph_us - alone_us:+.0f}", f"{in_graph_us / alone_us:.2f}"
        rows.append([f"{n_bytes >> 10} KiB", f"{alone_us:.0f}", f"{in_graph_us:.0f}", difference, times])
    if processes.rank == 0:
        headers = ["all-reduce of", "mpi4py alone (us)", "in the graph (us)", "difference (us)", "ratio"]
        print(tabulate(rows, headers, disable_numparse=True, colalign=("right",) * 5))


if __name__ == "__main__":
    main()
