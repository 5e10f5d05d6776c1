"""Where a run takes place: its ranks, and the hardware that plans are made for."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import tensorflow as tf

from .errors import InputError, TensorOptError, short
from .launch import usable_cores
from .plan import Plan
from .processes import current_processes, install_error_handling
from .profiling.hardware import Hardware, HardwareError, resolve
from .profiling.measure import Place, device_partitions, measure
from .reschedule.mesh import Level, Mesh

logger = logging.getLogger("tensoropt")
MEASUREMENT_BUDGET_S = 1.0


class Surroundings:
    """Attributes:
    processes: the ranks of this run.
    hardware: what they run on, measured or given.
    seed: of random numbers, the same on every rank; drawn by rank 0 if none was given.
    """

    def __init__(self, hardware: Hardware | str | None, seed: int | None) -> None:
        self.processes = current_processes()
        install_error_handling(self.processes)
        self._limit_threads()
        drawn = int.from_bytes(os.urandom(4), "little") if seed is None else seed
        self.seed = self.processes.broadcast(drawn)
        self.hardware = self._hardware(hardware)

    def _limit_threads(self) -> None:
        """Ranks of one machine share its cores; a number that the user has set stays."""
        if self.processes.local_size == 1 or "TF_NUM_INTRAOP_THREADS" in os.environ:
            return
        if tf.config.threading.get_intra_op_parallelism_threads() == 0:
            try:
                # A rank that is bound to its share of the cores sees only these.
                share = max(1, (os.cpu_count() or 1) // self.processes.local_size)
                tf.config.threading.set_intra_op_parallelism_threads(min(share, len(usable_cores())))
            except RuntimeError:
                logger.info("TensorFlow has started already; its threads stay as they are")

    def _hardware(self, given: Hardware | str | None) -> Hardware:
        if isinstance(given, Hardware):
            return given
        if given is not None:
            return resolve_cluster(given)
        processes = self.processes
        levels = (Level("machine", processes.machines), Level("device", processes.devices_per_machine))
        if processes.alone:
            _say_alone()
            return measure(levels, Place(), MEASUREMENT_BUDGET_S)
        from .collectives.mpi import MpiCommunicator

        mesh = Mesh(levels)
        communicator = MpiCommunicator(processes.comm, mesh, processes.begin_collective)
        communicator.prepare(device_partitions(mesh))
        place = Place(communicator, processes.rank, processes.local_size, processes.broadcast)
        measured = measure(levels, place, MEASUREMENT_BUDGET_S)
        communicator.free()
        return measured

    def on_first_rank(self, compute: Callable[[], Any]) -> Any:
        """Compute on rank 0 and give the result, or the error, to all: one plan, whatever sets and clocks do."""
        answer: Any = None
        mine: Any = None
        if self.processes.rank == 0:
            try:
                mine = compute()
                answer = mine.to_json() if isinstance(mine, Plan) else mine
            except TensorOptError as error:
                answer = error
        if self.processes.size == 1:
            if isinstance(answer, TensorOptError):
                raise answer
            return mine
        answer = self.processes.broadcast(answer)
        if isinstance(answer, TensorOptError):
            raise answer
        return mine if mine is not None else Plan.from_json(answer) if isinstance(answer, dict) else answer

    def check_same(self, digest: str) -> None:
        """Hold the ranks' models against each other.

        Raises:
            InputError: they differ.
        """
        digests = self.processes.gather(digest)
        if len(set(digests)) > 1:
            other = next(rank for rank, one in enumerate(digests) if one != digests[0])
            raise InputError(
                f"ranks 0 and {other} recorded different models; the script must record the same on every rank: look for "
                "what depends on the rank, on a set's order, or on random numbers"
            )


def resolve_cluster(cluster: Hardware | str) -> Hardware:
    """Hardware by name or file.

    Raises:
        InputError: there is no such, or its description is wrong.
    """
    if isinstance(cluster, Hardware):
        return cluster
    if not isinstance(cluster, (str, os.PathLike)):
        raise InputError(f"hardware is a name such as 'v100-2x8', a file, or a Hardware, got {short(cluster)}")
    try:
        return resolve(cluster)
    except HardwareError as error:
        raise InputError(str(error)) from error


@cache
def _say_alone() -> None:
    """Once a process: a forgotten mpirun is easily missed."""
    print("tensoropt: started alone, on one device; mpirun -n N python SCRIPT starts N", file=sys.stderr, flush=True)
