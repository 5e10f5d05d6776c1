"""Choose the collectives and the ranks that a plan runs by, and check that all ranks run the same."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

from ..common.dump import dump
from ..common.errors import InputError, short
from ..common.process.watchdog import CHAINS, CRITICAL, OVERLAPPABLE
from ..common.words import counted
from ..lowering.resharding.backends import CommunicatingBackend
from ..lowering.resharding.reshard import Backend, Collective
from ..plan.plan import Plan
from ..reschedule.layout import Axes, parse_axes
from ..reschedule.mesh import Mesh
from .collectives import tensorflow_server
from .collectives.single import SingleCommunicator
from .collectives.thread_pool import runs_at_once
from .gpus import computes_on_gpu
from .ranks import Processes, cores_of_a_rank

if TYPE_CHECKING:
    from ..lowering.resharding.in_graph import GraphCollectives

MPI, TENSORFLOW, HOROVOD, EMULATED = "mpi", tensorflow_server.NAME, "horovod", "emulated"
COLLECTIVES = (MPI, TENSORFLOW, HOROVOD, EMULATED)
Prepare = Callable[[Sequence[Axes]], None]


def checked_collectives(name: str | None) -> str:
    """Return the collectives to use: the given ones, those of ``TENSOROPT_COLLECTIVES``, or by default.

    The default is ``tensorflow`` where ranks have GPUs, else ``mpi``.

    Raises:
        InputError: the name is unknown.
    """
    collectives = name or os.environ.get("TENSOROPT_COLLECTIVES") or (TENSORFLOW if tensorflow_server.is_running() else MPI)
    if collectives not in COLLECTIVES:
        *names, last = map(repr, COLLECTIVES)
        raise InputError(f"unknown collectives {collectives!r}; expected {', '.join(names)} or {last}")
    return collectives


def loaded_plan(plan: object) -> Plan:
    """Return a plan, which is given itself or as a file's path; raise InputError if it is neither."""
    if isinstance(plan, (str, os.PathLike)):
        plan = Plan.load(FilePath(plan))
    if not isinstance(plan, Plan):
        raise InputError(f"build_execution_graph takes plan=, the result of find_strategy or load_plan, got {short(plan)}")
    return plan


def runs_in_order(processes: Processes) -> bool:
    """Return whether backward passes run in the program's order, the same on all ranks of ``processes``.

    They do with one core per rank, and on GPUs, which compute one operator at a time. With more cores TensorFlow computes
    several at once, which takes less time.
    """
    return processes.broadcast(computes_on_gpu() or cores_of_a_rank(processes.local_size) == 1)


def check_ranks(plan: Plan, processes: Processes, collectives: str) -> None:
    if collectives == EMULATED and processes.size > 1:
        raise InputError(
            f"collectives='emulated' runs all ranks in one process, but mpirun started {processes.size}; start it alone"
        )
    if collectives != EMULATED and plan.parallelism > processes.size:
        raise InputError(
            f"the plan is for {counted(plan.parallelism, 'device')}, but {counted(processes.size, 'rank')} "
            f"{'were' if processes.size > 1 else 'was'} started; start it with mpirun -n {plan.parallelism}, or "
            "find a plan for the ranks at hand"
        )


def communicating(mesh: Mesh, part: Processes, collectives: str, in_stages: bool = False) -> tuple[Backend, Prepare | None]:
    """Return the backend of a mesh's ranks, of a stage or of all, and what forms the groups of its collectives.

    Raises:
        InputError: these collectives can't be used here.
    """
    if mesh.n_devices == 1:
        return CommunicatingBackend(mesh, 0, SingleCommunicator()), None
    if collectives in (TENSORFLOW, HOROVOD):
        from ..lowering.resharding.in_graph import GraphBackend

        with part.waiting_in(f"the start of collectives={collectives!r}"):
            operators = graph_collectives(collectives, part, mesh, in_stages)
        wait, begin = part.waiting[CRITICAL], part.begin_collective
        return GraphBackend(mesh, part.rank, operators, wait, begin), lambda axes: None
    return by_mpi(mesh, part)


def graph_collectives(collectives: str, part: Processes, mesh: Mesh, in_stages: bool = False) -> GraphCollectives:
    """Return collectives that are operators of the graph, a chain ``in_stages``; every rank of ``part`` must call it.

    Raises:
        InputError: they can't be used here, or differ between ranks.
    """
    if collectives == TENSORFLOW:
        tensorflow_server.check_running()
        from .collectives.tensorflow import TensorFlowCollectives

        is_chained, is_ordered = in_stages or tensorflow_server.is_chained(), os.environ.get("TENSOROPT_RANK_ORDER") != "0"
        return TensorFlowCollectives(part.comm, mesh, is_chained, tensorflow_server.is_by_nccl(), is_ordered)
    from .collectives.horovod import HorovodCollectives

    return HorovodCollectives(part.comm, mesh, same_on_all(part))  # process sets are made while graphs are built


def taking_part(n_devices: int, processes: Processes) -> Processes:
    """Return the first ``n_devices`` ranks, from now on all of the run's; the others wait for them and end here."""
    if processes.is_alone:
        return processes
    has_work = processes.rank < n_devices
    with processes.waiting_in("the choice of ranks"):
        comm = processes.comm.Split(int(not has_work), processes.rank)
    if not has_work:
        print(
            f"rank {processes.rank} has nothing to do: the plan needs {n_devices} of {processes.size} devices; it "
            "waits for the others",
            file=sys.stderr,
            flush=True,
        )
        processes.wait_for_others()
        sys.exit(0)
    part = processes.part(comm)
    if part.size < processes.size:
        processes.comm, processes.size, processes.hosts, processes.gpus = comm, part.size, part.hosts, part.gpus
    return part


def by_mpi(mesh: Mesh, part: Processes) -> tuple[CommunicatingBackend, Prepare]:
    """Return the backend by which ranks communicate by MPI, and what forms the groups of its collectives."""
    from .collectives.mpi import MpiCommunicator

    has_naps = all(part.gather(part.naps))
    critical, overlappable = part.waiting
    communicator = MpiCommunicator(part.comm, mesh, part.begin_collective, has_naps)
    is_over_link = has_naps and part.are_apart
    backend = CommunicatingBackend(mesh, part.rank, communicator, critical, is_over_link=is_over_link)
    if not is_over_link or not all(part.gather(_allows_two_chains())):
        return backend, communicator.prepare
    second_communicator = MpiCommunicator(part.comm, mesh, lambda: part.begin_collective(OVERLAPPABLE), gives_way=True)

    def prepare(axes: Sequence[Axes]) -> None:
        communicator.prepare(axes)
        second_communicator.prepare(axes)

    overlappable_backend = CommunicatingBackend(mesh, part.rank, second_communicator, overlappable, is_over_link=True)
    return replace(backend, overlappable=overlappable_backend), prepare


def _allows_two_chains() -> bool:
    """Return whether two chains of collectives can run at once.

    MPI must let two threads in at once, and TensorFlow must have a thread to compute beside two collectives.
    """
    from mpi4py import MPI

    return MPI.Query_thread() == MPI.THREAD_MULTIPLE and runs_at_once(len(CHAINS) + 1)


def same_on_all(processes: Processes) -> Callable[[str], None]:
    """Return a function that every rank must call with the same text; it raises InputError if the texts differ."""

    def agree(text: str) -> None:
        rank = processes.first_that_differs(text)
        if rank is not None:
            raise InputError(
                f"ranks 0 and {rank} come with different plans, versions or fetches (rank {processes.rank}: {text}); every "
                "rank must run the same script on the same versions"
            )

    return agree


@dataclass
class Agreement:
    """A check that the ranks are about to run the same, which also prepares the groups that the collectives need."""

    processes: Processes
    prepare: Prepare | None
    _prepared: set[Axes] = field(default_factory=set)

    def __call__(self, digest: str, log: Sequence[Collective]) -> None:
        if self.processes.rank == 0:
            dump("collectives", *log)
        if self.prepare is None:
            return
        rank = self.processes.first_that_differs(digest, "the comparison of what is about to run")
        if rank is not None:
            raise InputError(
                f"ranks 0 and {rank} built different graphs for this run; every rank must call tensoropt.run with the same "
                "fetches and feeds, in the same order"
            )
        axes = {parse_axes(entry.axes) for entry in log} - self._prepared
        if axes:
            with self.processes.waiting_in("the groups of collectives"):
                self.prepare(sorted(axes))
            self._prepared |= axes
