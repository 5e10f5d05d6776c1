"""Errors of a collective's time between measured sizes: by the paper's interpolation, and by bytes over bandwidth.

    tensoropt run -n 2 tests/benchmarks/interpolation.py [--seconds 60]

Every collective is measured over every device partition at sizes 2^i, as ``tensoropt calibrate`` does, and then at sizes
between these. *interpolated* predicts the sizes between by interpolation; *bytes / bandwidth* predicts them by the bandwidth
of the largest size, as cost models without measurements do; *noise* is the difference when sizes 2^i are measured a second
time. Errors are |predicted - measured| / measured, over 1 KiB to 4 MiB.
"""

from __future__ import annotations

import argparse
from itertools import pairwise

import numpy as np
from tabulate import tabulate

from tensoropt.profiling.collective_tables import CollectiveTables, device_partitions
from tensoropt.profiling.hardware_costs import MeasuredCurve
from tensoropt.profiling.measuring_ranks import MeasuringProcess
from tensoropt.profiling.tensorflow_engine import TensorFlowEngine
from tensoropt.reschedule.layout import axes_text
from tensoropt.reschedule.mesh import Level, Mesh
from tensoropt.runtime.collectives.mpi import MpiCommunicator
from tensoropt.runtime.local_hardware import prepared_processes

LARGEST = 1 << 22


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    processes = prepared_processes()
    mesh = Mesh((Level("machine", processes.machines), Level("device", processes.devices_per_machine)))
    communicator = MpiCommunicator(processes.comm, mesh, processes.begin_collective)
    communicator.prepare(device_partitions(mesh))
    place = MeasuringProcess(communicator, processes.rank, processes.local_size, processes.broadcast)
    measuring, rows = CollectiveTables(TensorFlowEngine(), mesh, place), []
    for kind, axes, table in measuring.each(arguments.seconds / 2):
        sizes = [size for size in table.n_bytes if size <= LARGEST]
        between = [(low + high) // 8 * 4 for low, high in pairwise(sizes)]
        # Measured together with the table's sizes, as those were measured together.
        fresh = measuring.afresh(kind, axes, [*table.n_bytes, *between])
        curve = MeasuredCurve.of(table)
        per_byte_ns = table.time_us[-1] * 1e3 / table.n_bytes[-1]
        rows.append([
            kind,
            axes_text(axes),
            _error([(curve.time_ns(size), fresh[size] * 1e3) for size in between]),
            _error([(per_byte_ns * size, fresh[size] * 1e3) for size in between]),
            _error([(table.time_us[table.n_bytes.index(size)] * 1e3, fresh[size] * 1e3) for size in sizes]),
        ])
    if processes.rank == 0:
        print(tabulate(rows, ["collective", "axes", "interpolated", "bytes / bandwidth", "noise"]))


def _error(pairs: list[tuple[float, float]]) -> str:
    predicted, measured = np.array(pairs).T
    return f"{np.mean(np.abs(predicted / measured - 1)):.1%}"


if __name__ == "__main__":
    main()
