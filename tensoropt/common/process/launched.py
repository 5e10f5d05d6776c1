"""Read from the environment whether an MPI launcher started this process."""

from __future__ import annotations

import os
from collections.abc import Mapping

# The variables with (rank, size) of launchers: OpenMPI, MVAPICH, MPICH and Intel MPI (PMI), and PMIx.
LAUNCHER_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PMIX_RANK", "PMIX_SIZE"),
)


def launched_as(environ: Mapping[str, str] = os.environ) -> tuple[int, int | None] | None:
    """Return (rank, size) in the MPI job of this process, or None if it was started alone; size is None if unknown."""
    for rank_name, size_name in LAUNCHER_VARIABLES:
        if rank_name in environ:
            size = environ.get(size_name)
            return int(environ[rank_name]), int(size) if size is not None else None
    return None
