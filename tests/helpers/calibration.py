"""A calibration of this machine that isn't measured: ranks of tests find it, measure nothing, and plan by the same numbers
everywhere, however busy the machine is."""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import socket
from itertools import product
from pathlib import Path

from tensoropt.profiling.compute import cpu_name
from tensoropt.profiling.hardware import Device, Hardware, LinkLevel, Origin
from tensoropt.runtime.ranks import cores_of_a_rank

MOST_RANKS = 8
DEVICE = {"memory_bytes": 4 << 30, "memory_bytes_per_s": 1e10, "operator_overhead_us": 1.0, "copied_bytes_per_s": 4e9}
FLOPS_PER_S = {"float32": 1e11, "float64": 5e10}
LINK = {"latency_us": 100.0, "bytes_per_s": 2e9}


def write_calibrations(folder: Path) -> None:
    """Write the calibration of each number of ranks on this machine, as a cache's folder ``hardware`` has them."""
    device = Device(cpu_name(), flops_per_s=FLOPS_PER_S, **DEVICE)
    today, version = datetime.date.today().isoformat(), _tensorflow_version()
    for n_ranks, collectives in product(range(1, MOST_RANKS + 1), ("mpi", "tensorflow", "horovod")):
        levels = LinkLevel("machine", 1, **LINK), LinkLevel("device", n_ranks, **LINK)
        cores = cores_of_a_rank(n_ranks)  # as many threads TensorFlow gets, if several ranks share the machine
        origin = Origin(today, version, cores if n_ranks > 1 or cores == 1 else 0, collectives=collectives)
        hosts = hashlib.sha256(" ".join([socket.gethostname()] * n_ranks).encode()).hexdigest()[:8]
        file = f"1x{n_ranks}-{hosts}{'' if collectives == 'mpi' else f'-{collectives}'}.json"
        Hardware("this machine", device, levels, measured=origin).save(folder / file)


def _tensorflow_version() -> str:
    """Return the installed version, without the seconds that importing it takes."""
    package, *_ = {"tensorflow", "tensorflow-cpu"}.intersection(
        str(found.metadata["Name"]).replace("_", "-") for found in importlib.metadata.distributions()
    )
    return importlib.metadata.version(package)
