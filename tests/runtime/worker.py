"""A rank for the tests of launching: does what its first argument says, on the rank that the second names."""

import io
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np

from tensoropt.common.errors import InputError
from tensoropt.runtime import objects_between_ranks
from tensoropt.runtime.failures import error_handling as failures
from tensoropt.runtime.ranks import Processes, current_processes, install_error_handling


class MyError(Exception):
    """A user's."""


def fault(kind: str) -> None:
    if kind == "input":
        raise InputError("the batch must divide: got 7.")
    if kind == "value":
        raise ValueError("boom")
    if kind == "exit":
        sys.exit(3)
    if kind == "raise-exit":
        raise SystemExit(3)
    if kind == "busy-mpirun":
        hold_mpirun(0.7)
        failures.AGREEMENT_S = 0.1
        raise InputError("the batch must divide: got 7.")
    if kind == "stop":
        sys.exit(0)
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "leave":
        os._exit(3)
    if kind == "terminate":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    if kind == "own-error":
        raise MyError("not today")
    if kind == "interrupt":
        raise KeyboardInterrupt


def check_children_end_alone() -> None:
    """Child processes that this rank forks end as without TensorOpt, however they do, and only they."""
    context = multiprocessing.get_context("fork")
    with context.Pool(2) as pool:  # whose processes get SIGTERM in the end
        assert pool.map(abs, [-1, 2]) == [1, 2]
    child = context.Process(target=time.sleep, args=[60])
    child.start()
    child.terminate()
    child.join(10)
    assert child.exitcode == -signal.SIGTERM
    for kind, code in {"exit": 3, "value": 1, "leave": 3}.items():
        number = os.fork()
        if number == 0:
            sys.stderr = io.StringIO()
            fault(kind)
        assert os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) == code
    print("the children ended alone", flush=True)


def hold_mpirun(seconds: float) -> None:
    """Stop mpirun for a while, as if it hadn't got a core."""
    number = os.getppid()
    while Path(f"/proc/{number}/comm").read_text().strip() not in ("mpirun", "prterun"):
        number = int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(number, signal.SIGSTOP)
    goes_on = ["sh", "-c", f"sleep {seconds}; kill -CONT {number}"]
    subprocess.Popen(goes_on, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def check_long_values(processes: Processes) -> None:
    """Values of different lengths, in many rounds, are whole, and the receiver's own to change."""
    with patch.object(objects_between_ranks, "ROUND_BYTES", 1000):
        own = np.arange(100 * (processes.rank + 1))
        for found in (processes.gather(own), processes.collect(own, processes.size - 1)):
            assert found is not None or processes.rank != processes.size - 1
            for rank, value in enumerate(found or []):
                assert value.tolist() == list(range(100 * (rank + 1))) and value.flags.writeable
        assert processes.broadcast(own).tolist() == list(range(100))


def search() -> None:
    """Computes for longer than the timeout, and is stopped then."""
    until = time.monotonic() + 5
    while time.monotonic() < until:
        sum(range(10000))
    os.kill(os.getpid(), signal.SIGSTOP)


# As if it were TensorOpt's own.
search.__code__ = search.__code__.replace(co_filename=failures.__file__)


def main() -> None:
    kind, who = sys.argv[1], sys.argv[2]
    # Sooner than a user's, to be quick; a rank that fails alone waits for others in vain.
    failures.AGREEMENT_S, failures.WATCH_INTERVAL_S = 1.0 if who == "1" else 3.0, 0.5
    if kind == "stop-first" and os.environ["OMPI_COMM_WORLD_RANK"] == "1":
        os.kill(os.getpid(), signal.SIGSTOP)
    processes = current_processes()
    install_error_handling(processes)
    processes.barrier()
    if kind == "collectives":
        check_long_values(processes)
        print(
            f"rank {processes.rank} of {processes.size}: {processes.broadcast(processes.rank + 5)} "
            f"{processes.gather(processes.rank)} {processes.gather_max(processes.rank / 2)} "
            f"{processes.machines}x{processes.devices_per_machine}"
        )
    elif kind == "wait":
        print("up", flush=True)
        if processes.rank == 0:
            processes.gather(None)
        for _ in range(600):  # a signal just before a sleep is seen after it
            time.sleep(0.1)
    elif kind == "search":
        if processes.rank == 1:
            search()
        processes.broadcast(None, "a plan")
        processes.gather(None, "a plan")
    elif kind == "leftover-input":
        if processes.rank == processes.size - 1:
            processes.wait_for_others()
            sys.exit(0)
        fault("input")
    elif kind == "caught-exit":
        try:
            fault("exit")
        except SystemExit:
            processes.barrier()
        if processes.rank == 0:
            time.sleep(4)  # longer than ranks wait for each other after a failure
        print("went on")
    elif kind == "slow":
        if processes.rank == 0:
            time.sleep(4)
        elif who == "children":
            check_children_end_alone()
        print("done")
    elif kind == "numbered":
        raise InputError(f"rank-dependent: got {processes.rank}.")
    else:
        if who == "all" or processes.rank == int(who):
            fault(kind)
        processes.barrier()


main()
