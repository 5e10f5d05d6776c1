"""Refuse a start of several processes that don't see each other through MPI: each would train a model of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ...common.errors import InputError, describe
from ..failures.error_handling import install_lone_error_handling

# The variables with (rank, size) of what a launcher starts at once. SLURM_NTASKS isn't one: a batch script has it too, and
# plain python in it is one process.
STEP_VARIABLES = (
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"), ("PMI_RANK", "PMI_SIZE"), ("PMIX_RANK", "PMIX_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"), ("FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
    ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"), ("HOROVOD_RANK", "HOROVOD_SIZE"),
)  # fmt: skip


def refuse_separate_processes(n_seen: int, environ: Mapping[str, str] = os.environ, parent: str | None = None) -> None:
    """Refuse a process whose launcher started more processes than see each other through MPI.

    Args:
        n_seen: the processes that MPI sees, this one among them.
        parent: the name of the program that started this process; found out if None.

    Raises:
        InputError: there are more, of which the first alone prints the error.
    """
    sizes = [(int(environ.get(size, 0)), environ.get(rank, "0"), size) for rank, size in STEP_VARIABLES]
    n_started, rank, name = max(sizes, key=lambda entry: entry[0])
    if n_started <= n_seen:
        return
    # Open MPI starts its daemons on other hosts by srun, and a rank there has the variables of the daemons' step. Where
    # mpirun itself runs beside the rank, it is mpirun that was started several times.
    if "OMPI_COMM_WORLD_SIZE" in environ and (parent or _parent()) not in ("prterun", "mpirun", "mpiexec"):
        return
    if n_seen == 1:
        install_lone_error_handling(int(rank))
    raise InputError(
        describe(
            "the launcher started more processes than see each other through MPI, so that several models would be trained",
            got=f"{n_started} processes ({name}), of which this one sees {n_seen}",
            advice=f"start them as one MPI job: mpirun -n {n_started} without the other launcher, or srun --mpi=pmix where "
            f"srun --mpi=list names pmix. If they shall be separate runs, unset {name} in each (env -u {name} python ...)",
        )
    )


def _parent() -> str:
    """Return the name of the program that started this process, or nothing if that isn't known."""
    try:
        return Path(f"/proc/{os.getppid()}/comm").read_text().strip()
    except OSError:
        return ""
