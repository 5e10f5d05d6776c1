"""Let rank 0 go on alone, on any of its machine's cores, where one device is as fast as several.

Its operators keep the threads that ranks began with: TensorFlow sizes its pools once.
"""

from __future__ import annotations

import contextlib
import os
import sys

from .failures.notes import SEED
from .gpus import computes_on_gpu
from .ranks import Processes


def could_go_alone(processes: Processes) -> bool:
    """Return whether rank 0 can have all that these ranks have: cores of one machine, in a run that isn't kept."""
    return processes.size > 1 and not processes.are_apart and not computes_on_gpu() and SEED not in os.environ


def go_alone(processes: Processes) -> None:
    """Have rank 0 go on like a process that was started alone; the other ranks wait here until it ends, and end."""
    if processes.rank:
        with contextlib.suppress(SystemExit):  # of a failure, whose exit code is rank 0's
            processes.wait_for_others()
        processes.comm = None  # on which nobody answers any more
        sys.exit(0)
    cores = os.sched_getaffinity(os.getppid())  # those of mpirun, which binds its ranks
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cores)
    processes.comm, processes.size, processes.hosts, processes.ranks_per_core = None, 1, processes.hosts[:1], 1.0
