"""Ranks on one core, of which one waits in a collective for the other: it must leave it the core.

    mpirun -n 2 shared_core_rank.py
"""

from __future__ import annotations

import os
import time

import numpy as np

from tensoropt.reschedule.mesh import Mesh
from tensoropt.runtime.collectives.mpi import MpiCommunicator
from tensoropt.runtime.execute import by_mpi
from tensoropt.runtime.ranks import current_processes

WAIT_S = 0.6


def main() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(os.getppid()))})
    processes, mesh = current_processes(), Mesh.of(2)
    assert processes.shares_core and processes.naps and not processes.are_apart
    backend, prepare = by_mpi(mesh, processes)
    assert prepare is not None and not backend.is_over_link and backend.overlappable is None
    communicator = backend.communicator
    assert isinstance(communicator, MpiCommunicator)
    prepare([mesh.axes])
    communicator.all_reduce(mesh.axes, np.ones(1000))
    started_s, busy_s = time.perf_counter(), time.process_time()
    if processes.rank == 1:
        time.sleep(WAIT_S)
    assert communicator.all_reduce(mesh.axes, np.ones(1000)).tolist() == [2.0] * 1000
    waited_s, busy_s = time.perf_counter() - started_s, time.process_time() - busy_s
    if processes.rank == 0:
        print(f"waited {waited_s:.3f} s, busy for {busy_s:.3f} s", flush=True)


if __name__ == "__main__":
    main()
