"""Start MPI, in which each rank waits until all have come, under the same timeout as all waits.

mpi4py starts MPI when it is imported, and lets no other thread of Python run meanwhile. So MPI is started here before that,
by a call that lets threads run. Ranks that haven't come can't be asked yet: the ranks of one machine see who has come by
empty files in a folder of the job.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib.util
import math
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from types import ModuleType

from ..common.process.watchdog import TIMEOUT
from ..common.source_lines import code_location

THREAD_LEVELS = ("single", "funneled", "serialized", "multiple")
JOB_VARIABLE = "PMIX_NAMESPACE"
SIZE_VARIABLE, LOCAL_SIZE_VARIABLE = "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"
RANK_VARIABLE, LIMIT_VARIABLE = "OMPI_COMM_WORLD_RANK", "OMPI_MCA_btl_tcp_eager_limit"
AT_ONCE_BYTES = 1 << 20
"""The largest message to another machine that MPI sends at once."""
SOCKET_BYTES = 1 << 22
"""The buffer of a socket to another machine. Where the kernel sizes it, 2 MiB leave while a rank computes, and not 4."""
STAGGER_S = 0.3
"""Seconds by which each rank prints later than the one before; the first to end ends the others."""


def started_mpi() -> ModuleType:
    """Return ``mpi4py.MPI``, with MPI started.

    Raises:
        ImportError, RuntimeError: mpi4py isn't there, or can't load MPI.
    """
    if "mpi4py.MPI" not in sys.modules:
        _start()
    from mpi4py import MPI

    return MPI


def send_at_once(environ: MutableMapping[str, str] = os.environ, largest_buffer: Callable[[], int] | None = None) -> None:
    """Let Open MPI send messages of up to 1 MiB to other machines at once, unless it is told a limit; before MPI starts.

    By default those above 64 KiB wait until both sides are in MPI, however long a rank computes. Sent at once, they are on
    their way meanwhile: data parallelism of a Transformer over 1 Gb/s took a tenth less time. What a socket's buffer doesn't
    take still waits until the sender is in MPI again. So buffers get SOCKET_BYTES where the kernel allows that.

    Where a script has started MPI already, that is too late; rank 0 says so.

    Args:
        largest_buffer: returns the largest buffer that the kernel gives a socket that asks for one.
    """
    size, local_size = environ.get(SIZE_VARIABLE), environ.get(LOCAL_SIZE_VARIABLE)
    if size is None or size == local_size:
        return
    is_late = LIMIT_VARIABLE not in environ and "mpi4py.MPI" in sys.modules
    environ.setdefault(LIMIT_VARIABLE, str(AT_ONCE_BYTES))
    if is_late and environ.get(RANK_VARIABLE) == "0":
        print(
            "tensoropt: mpi4py.MPI was imported before tensoropt, so that messages above 64 KiB to other machines wait "
            "until both sides are in MPI; import tensoropt first, or start with mpirun --mca btl_tcp_eager_limit "
            f"{AT_ONCE_BYTES}",
            file=sys.stderr,
            flush=True,
        )
    if (largest_buffer or _largest_buffer)() >= SOCKET_BYTES:
        for direction in ("snd", "rcv"):
            environ.setdefault(f"OMPI_MCA_btl_tcp_{direction}buf", str(SOCKET_BYTES))


def _largest_buffer() -> int:
    """Return the largest buffer that the kernel gives a socket, for both directions; 0 if that isn't known."""
    try:
        return min(int(Path(f"/proc/sys/net/core/{direction}mem_max").read_text()) for direction in "rw")
    except (OSError, ValueError):
        return 0


def _start() -> None:
    """Start MPI as mpi4py would. If that can't be done from outside, or isn't wanted, mpi4py does it later."""
    import mpi4py

    spec = importlib.util.find_spec("mpi4py.MPI")
    if spec is None or spec.origin is None or not mpi4py.rc.initialize or not mpi4py.rc.threads:
        return
    try:
        library = ctypes.CDLL(spec.origin)
        is_initialized, start, level = ctypes.c_int(), library.MPI_Init_thread, ctypes.c_int()
        library.MPI_Initialized(ctypes.byref(is_initialized))
    except (OSError, AttributeError):
        return
    if is_initialized.value:
        return
    start(None, None, THREAD_LEVELS.index(mpi4py.rc.thread_level), ctypes.byref(level))
    atexit.register(finalize)


def finalize() -> None:
    """End MPI, unless it has ended already."""
    from mpi4py import MPI

    if not MPI.Is_finalized():
        MPI.Finalize()


@contextlib.contextmanager
def within_timeout(rank: int, timeout_s: float, end: Callable[[int], object] = os._exit) -> Iterator[None]:
    """End this rank, and so all, if this context lasts longer than the timeout; say which ranks haven't come."""
    if math.isinf(timeout_s):
        yield
        return
    started_s, frame = time.monotonic(), sys._getframe(1)
    call = code_location(frame).call
    folder = _arrivals_folder(rank)

    def late() -> None:
        place = f" (in {call})" if call else ""
        print(
            f"tensoropt: rank {rank} has waited for {time.monotonic() - started_s:.0f} s for all ranks to start MPI{place}: "
            f"{_missing(folder)}. All ranks must come to it; {TIMEOUT}=SECONDS lets ranks wait for longer",
            file=sys.stderr,
            flush=True,
        )
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        end(1)

    timer = threading.Timer(timeout_s + STAGGER_S * rank, late)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if folder is not None:
            with contextlib.suppress(OSError):
                (folder / str(rank)).unlink()
                folder.rmdir()


def _arrivals_folder(rank: int) -> Path | None:
    """Note that this rank has come; return the folder of all that have on this machine, or None if there can't be one."""
    job = os.environ.get(JOB_VARIABLE)
    if job is None:
        return None
    folder = Path(tempfile.gettempdir()) / f"tensoropt-{os.getuid()}-{job.replace(os.sep, '_')}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / str(rank)).touch()
    except OSError:
        return None
    return folder


def _missing(folder: Path | None) -> str:
    """Return text on which ranks haven't come, as far as this machine knows."""
    size, local_size = (int(os.environ.get(name, 0)) for name in (SIZE_VARIABLE, LOCAL_SIZE_VARIABLE))
    try:
        ranks = sorted(int(file.name) for file in folder.iterdir()) if folder is not None else []
    except OSError:
        ranks = []
    if not ranks or len(ranks) == local_size:
        return "another one hasn't come, or is stopped"
    if local_size == size:
        missing = [rank for rank in range(size) if rank not in ranks]
        return "; ".join(f"rank {rank} hasn't come, is late in the user's code, or is stopped" for rank in missing)
    return f"of this machine's {local_size} ranks only {', '.join(map(str, ranks))} have come"
