"""Start TensorFlow's server in each rank, through which its collective operators communicate.

That must be before TensorFlow's first device, since a variable that is older lives on a device that is no more. So ``import
tensoropt`` starts it, in a rank itself: what a rank starts, such as a notebook's kernel or a worker that reads data,
inherits the launcher's variables and must have no server.

Each rank is a job of its own: a group's members are ordered by the text of their tasks' names, in which task 10 comes
before task 2. Ports are free ones that MPI hands around; if one is taken in between, all try again. There is no coordination
service: it would take SIGTERM for itself. A server listens on all interfaces and asks for no password.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING

from ...common.errors import InputError, TensorOptError, describe
from ...common.process.launched import launched_as
from ...common.process.watchdog import timeout_s
from ..gpus import computes_on_gpu, is_driver_here

if TYPE_CHECKING:
    from ..ranks import Processes

VARIABLE, NAME = "TENSOROPT_COLLECTIVES", "tensorflow"
ADDRESS = "TENSOROPT_ADDRESS"
RANK_PROCESS = "TENSOROPT_RANK_PROCESS"
ATTEMPTS = 5
_WHAT = "the start of TensorFlow's collectives"
_started: list[bool] = []
"""Whether NCCL is used, once the server has started."""


def is_rank_itself() -> bool:
    """Return whether this process is a rank, and not one that a rank has started. The first call marks the rank."""
    pid = str(os.getpid())
    return launched_as() is not None and os.environ.setdefault(RANK_PROCESS, pid) == pid


def is_running() -> bool:
    """Return whether this process's server has started."""
    return bool(_started)


def is_by_nccl() -> bool:
    """Return whether this process's server has started, with collectives between GPUs."""
    return any(_started)


def is_chained() -> bool:
    """Return whether collectives run one after the other, as GPUs need; with ``TENSOROPT_CHAIN=1`` on CPUs, too."""
    return is_by_nccl() or os.environ.get("TENSOROPT_CHAIN") == "1"


def check_running() -> None:
    """Check that this process's server has started; raise InputError if it hasn't, and it is too late."""
    if not _started:
        raise InputError(
            describe(
                "TensorFlow's collectives must start before TensorFlow does, which is too late now",
                got=f"collectives={NAME!r} without {VARIABLE}={NAME}",
                advice=f"start with tensoropt run --collectives {NAME}, or set {VARIABLE}={NAME} ahead of import tensoropt",
            )
        )


def start_if_asked() -> None:
    """Give this rank its GPU, and start its server if ranks have GPUs or ``TENSOROPT_COLLECTIVES`` says so.

    Every rank must call it. In other processes it does nothing, and next to nothing where there are neither.

    Raises:
        InputError: GPUs can't be shared out, TensorFlow has started already, or a rank can't reach another.
        TensorOptError: no server could be started.
    """
    choice = os.environ.get(VARIABLE)
    if not is_rank_itself() or not (choice == NAME or is_driver_here()):
        return
    from ..ranks import current_processes

    processes = current_processes()
    if choice == NAME or (choice is None and processes.gpus):
        _start(processes)


def _start(processes: Processes) -> None:
    from ...common.process.tensorflow_import import import_tensorflow
    from ..failures.error_handling import install_error_handling
    from ..ranks import display_here

    if processes.size == 1:
        return
    install_error_handling(processes)
    import_tensorflow()
    from tensorflow.python.eager import context

    too_late = processes.gather(context.context()._context_handle is not None, _WHAT)
    if any(too_late):
        raise InputError(
            f"rank {too_late.index(True)} used TensorFlow before import tensoropt, and its collectives must start first; "
            "import tensoropt at the beginning of the script"
        )
    are_on_gpus = all(processes.gather(computes_on_gpu(), _WHAT))
    if processes.gpus and not are_on_gpus:
        display_here().say(
            f"ranks have GPUs ({processes.gpus[0]}), but this TensorFlow can't use them and computes on CPUs; "
            "tensoropt doctor says what is missing"
        )
        if os.environ.get(VARIABLE) != NAME:
            return
    # NCCL refuses two ranks on one GPU.
    places = set(zip(processes.hosts, (gpu.uuid for gpu in processes.gpus), strict=False))
    has_nccl = are_on_gpus and len(places) == processes.size
    leader = f"/job:{_job(0)}/replica:0/task:0"
    context.context().configure_collective_ops(leader, scoped_allocator_enabled_ops=(), use_nccl_communication=has_nccl)
    addresses = _serve(processes)
    _check_reachable(processes, addresses)
    _started.append(has_nccl)


def _job(rank: int) -> str:
    return f"rank{rank:05d}"


def _serve(processes: Processes) -> list[str]:
    """Start the servers and return their addresses. TensorFlow binds a port that was free; it may be taken in between."""
    port, failures = free_port(), ["not yet"]
    for _ in range(ATTEMPTS):
        addresses = processes.gather(f"{own_address(processes)}:{port}", _WHAT)
        failures = processes.gather(_enabled(addresses, processes.rank), _WHAT)
        if not any(failures):
            return addresses
        if failures[processes.rank]:
            port = free_port()
    rank, reason = next((rank, failure) for rank, failure in enumerate(failures) if failure)
    raise TensorOptError(
        describe(
            f"rank {rank} can't start TensorFlow's server",
            got=reason,
            where=f"{ATTEMPTS} ports, the last {addresses[rank]}",
            advice="let it listen on free ports, or take collectives='mpi'",
        )
    )


def _enabled(addresses: list[str], rank: int) -> str:
    """Start this rank's server, or tell it of other addresses; return what TensorFlow says if it can't."""
    import tensorflow as tf
    from tensorflow.python.eager import context

    jobs = {_job(member): [address] for member, address in enumerate(addresses)}
    server = tf.train.ServerDef(
        cluster=tf.train.ClusterSpec(jobs).as_cluster_def(),
        job_name=_job(rank),
        task_index=0,
        protocol="grpc",
        default_session_config=context.context().config,  # the threads, and how a GPU's memory is taken
    )
    try:
        context.context().enable_collective_ops(server)
        context.context().ensure_initialized()
    except tf.errors.OpError as error:
        return error.message.splitlines()[0]
    return ""


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("", 0))
        return int(bound.getsockname()[1])


def own_address(processes: Processes) -> str:
    """Return the address at which other ranks reach this one: that of the interface by which it reaches another machine.

    Raises:
        InputError: there is none.
    """
    if os.environ.get(ADDRESS) or not processes.are_apart:
        return os.environ.get(ADDRESS) or "127.0.0.1"
    name = processes.hosts[processes.rank]
    peer = next(host for host in processes.hosts if host != name)
    address = "no address"
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        route.connect((peer, 9))  # sends nothing
        address = str(route.getsockname()[0])
    if address == "no address" or address.startswith("127."):
        raise InputError(
            describe(f"{name} has no address for {peer}", got=address, advice=f"set {ADDRESS} to each machine's own address")
        )
    return address


def _check_reachable(processes: Processes, addresses: list[str]) -> None:
    """Raise InputError if a rank doesn't reach the server of another machine, for which it would wait."""
    own_host, unreached = processes.hosts[processes.rank], ""
    for address, host in zip(addresses, processes.hosts, strict=True):
        name, _, port = address.rpartition(":")
        if host == own_host or unreached:
            continue
        try:
            socket.create_connection((name, int(port)), min(10.0, timeout_s() / 2)).close()  # before others miss this rank
        except OSError as error:
            unreached = f"{own_host} doesn't reach {host} at port {port} ({address}): {error}"
    for failure in filter(None, processes.gather(unreached, _WHAT)):
        raise InputError(f"{failure}; open the ports between the machines, or set {ADDRESS} to each machine's own address")
