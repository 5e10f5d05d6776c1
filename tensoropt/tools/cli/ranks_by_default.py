"""Find how many ranks ``tensoropt run`` starts where ``-n`` doesn't say, without TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

# Where batch systems say how many tasks a job has: Slurm, PBS, LSF, Grid Engine.
_TASKS = ("SLURM_NTASKS", "PBS_NP", "LSB_DJOB_NUMPROC", "NSLOTS")
_GPUS = Path("/proc/driver/nvidia/gpus")


def ranks_by_default(environ: Mapping[str, str] = os.environ, gpus: Path = _GPUS) -> int:
    """Return the number of the batch system's tasks, else of this machine's GPUs that may be used, else 1."""
    for name in _TASKS:
        if environ.get(name, "").isdecimal():
            return max(1, int(environ[name]))
    n_gpus = len(list(gpus.iterdir())) if gpus.is_dir() else 0
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        n_gpus = min(n_gpus, len([device for device in visible.split(",") if device.strip() not in ("", "-1")]))
    return max(1, n_gpus)
