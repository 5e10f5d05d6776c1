"""One save to a prefix at a time: a lock file that says who holds it, and that no dead process holds for ever.

The file is made beside the target and linked to its name, which one process alone can do, on NFS too. Whether its holder
still lives is told

    on this machine, since its last start   by the process, and by when that started
    on this machine, before                 it doesn't
    elsewhere, or in another container      by the file, which the holder touches every few seconds: one that stays as it is
                                            for ``STALE_S`` is left over. No clocks of two machines are compared

Who finds a lock of the dead takes its place. A holder that was taken for dead, since it stood still for so long, notices
before it puts its checkpoint in place.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ...common.errors import InputError, TensorOptError, describe

TOUCH_S, STALE_S, LOOK_S = 5.0, 60.0, 0.5
GUARD_LOOKS, GUARD_LOOK_S = 500, 0.01
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that saves.

    Attributes:
        machine: its boot and namespace of processes, within which a process id means the same.
        started: when the process started, in the machine's own units.
        since: when it took the lock, for people to read.
        token: of this lock, which no other has.
    """

    host: str
    machine: str
    pid: int
    started: str
    since: str
    token: str

    @classmethod
    def here(cls) -> Holder:
        """This process."""
        return cls(
            host=socket.gethostname(),
            machine=_machine(),
            pid=os.getpid(),
            started=_started(os.getpid()),
            since=time.strftime("%Y-%m-%d %H:%M:%S"),
            token=uuid.uuid4().hex,
        )

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, which has been saving to it since {self.since}"

    @property
    def is_gone(self) -> bool | None:
        """Whether it has ended; None where that can't be seen from here."""
        if self.machine == _machine():
            return _started(self.pid) != self.started
        has_same_host = self.host == socket.gethostname()
        # The same machine, started again: its namespace of processes is of another boot.
        return True if has_same_host and self.machine.split()[0] != _machine().split()[0] else None


class Lock:
    """The right to save to one prefix.

    Args:
        file: the lock file.
        what: what it is about, for sentences.
    """

    def __init__(self, file: Path, what: str) -> None:
        self.file, self.what = file, what
        self._own: Holder | None = None
        self._done = threading.Event()

    @property
    def is_held(self) -> bool:
        """Whether this object holds it, as far as it knows."""
        return self._own is not None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            TensorOptError: another process saves to this prefix; the sentence says which.
            InputError: the folder can't be written.
        """
        own = Holder.here()
        try:
            while not self._link(own):
                found = self._read()
                if found is None:
                    time.sleep(LOOK_S)  # of one that is being made there may be no more than the name yet
                    found = self._read()
                if found is not None and not self._is_left_over(found):
                    raise TensorOptError(self._refusal(found))
                self._remove(found)
        except OSError as error:
            raise InputError(
                describe(
                    f"checkpoint '{self.what}' can't be saved",
                    got=f"{error.strerror} for '{error.filename}'",
                    expected="a folder that can be written",
                )
            ) from error
        self._own = own
        self._done.clear()
        _held.add(own.token)
        threading.Thread(target=self._touch, name="tensoropt-lock", daemon=True).start()

    def check(self) -> None:
        """See that this process still holds the lock.

        Raises:
            TensorOptError: another one has taken it, since this one seemed dead.
        """
        found = self._read()
        if found is None or found != self._own:
            raise TensorOptError(self._refusal(found))

    def release(self) -> None:
        """Give the lock back, where it is still this process's."""
        own, self._own = self._own, None
        self._done.set()
        if own is None:
            return
        _held.discard(own.token)
        with contextlib.suppress(OSError):
            if self._read() == own:
                self.file.unlink()

    def _refusal(self, found: Holder | None) -> str:
        return describe(
            f"checkpoint '{self.what}' can't be saved: another run saves to it",
            got=f"its lock '{self.file}' held by {found or 'another process'}",
            advice="let each run save to a prefix of its own, or end the other one",
        )

    def _link(self, own: Holder) -> bool:
        """Make the lock file with all that is in it; False if there is one."""
        text, beside = json.dumps(asdict(own)), self.file.with_name(f"{self.file.name}.{own.token}")
        try:
            beside.write_text(text)
            os.link(beside, self.file)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return self._create(text)
        finally:
            with contextlib.suppress(OSError):
                beside.unlink()
        return True

    def _create(self, text: str) -> bool:
        """Where there are no links: the file is there a moment before what is in it."""
        try:
            with self.file.open("x") as file:
                file.write(text)
        except FileExistsError:
            return False
        return True

    def _read(self) -> Holder | None:
        """Who holds the lock, as the file says; None where it isn't there or isn't whole."""
        try:
            return Holder(**json.loads(self.file.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def _is_left_over(self, found: Holder) -> bool:
        """Whether the holder is gone; elsewhere only time tells."""
        is_gone = found.is_gone
        if is_gone is not None:
            # A save of this process that was cut short, or one that another of its threads does.
            is_own = found.pid == os.getpid() and found.machine == _machine()
            return is_gone or (is_own and found.token not in _held)
        before, until = self._stamp(), time.monotonic() + STALE_S
        while time.monotonic() < until:
            time.sleep(LOOK_S)
            if self._stamp() != before:
                return self._read() != found
        return True

    def _stamp(self) -> object:
        """What changes when the holder touches its lock; opened, which a shared folder answers afresh."""
        try:
            with self.file.open() as file:
                status = os.fstat(file.fileno())
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def _remove(self, found: Holder | None) -> None:
        """Remove what a dead process left; never the lock of one that was quicker to do so."""
        with _alone_in(self.file.parent), contextlib.suppress(FileNotFoundError):
            if self._read() == found:
                self.file.unlink()

    def _touch(self) -> None:
        while not self._done.wait(TOUCH_S):
            with contextlib.suppress(OSError):
                os.utime(self.file)


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Among those who remove what is left over, as far as the file system has such locks: not on NFS.

    There two may find a lock left over at the same moment, and the slower one remove that of the quicker one, who notices by
    :meth:`Lock.check`.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        for _ in range(GUARD_LOOKS):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(GUARD_LOOK_S)
            except OSError:
                break
        yield
    finally:
        os.close(descriptor)


_held: set[str] = set()
"""The tokens of locks that objects of this process hold."""


def _machine() -> str:
    """This boot of this machine, and this namespace of processes on it."""
    boot, namespace = "", ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with contextlib.suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid")
    return f"{boot or socket.gethostname()} {namespace}"


def _started(pid: int) -> str:
    """When a process started; "" if there is none."""
    try:
        # After the name, which may have spaces: the 22nd field.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
