"""Train draws of the suite on these ranks, and hold them to one device's numbers.

    mpirun -n N python -m mpi4py tests/one_device/worker.py SEED|SEED:MODEL ...

Every second one is trained as over a link. ``TENSOROPT_COLLECTIVES`` chooses the collectives.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tensorflow as tf
from helpers.switches import graphs_as_built

from one_device.drawing import drawn
from one_device.running import check, over_links
from tensoropt.runtime.collectives.tensorflow_server import is_running
from tensoropt.runtime.measuring.local_hardware import prepared_processes


def main(asked: list[str]) -> None:
    if not is_running():
        # Two chains of collectives, and a thread that computes beside them.
        tf.config.threading.set_inter_op_parallelism_threads(3)
    processes = prepared_processes()
    of_links = over_links(processes)
    n_trained = 0
    for number, (seed, _, name) in enumerate(each.partition(":") for each in asked):
        n_trained += check(drawn(int(seed), processes.size, name), of_links if number % 2 else processes)
    if processes.rank == 0:
        print(f"{n_trained} of {len(asked)} draws trained on {processes.size} ranks", flush=True)


if __name__ == "__main__":
    with graphs_as_built():
        main(sys.argv[1:])
