"""Allow one save to a prefix at a time, by a lock file that names its holder and that no dead process holds for ever.

The file is made beside the target and linked to its name, which only one process can do, on NFS too. To decide whether the
holder still lives:

    on this machine, since its last start   look at the process, and at when it started
    anywhere else                           look at the file, which the holder touches every few seconds: one that doesn't
                                            change for ``STALE_S`` is left over. No clocks of two machines are compared

Host names don't tell machines apart: many are called ``localhost``, and containers on two machines may have one name.
A process that finds a dead holder's lock takes its place. A holder that was taken for dead, because it stood still for so
long, notices that before it puts its checkpoint in place.
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
        machine: the machine's boot and namespace of processes, within which a process id is unique; "" if unknown.
        started: when the process started, in the machine's own units.
        since: when it took the lock, for people to read.
        token: identifies this lock; no other lock has it.
    """

    host: str
    machine: str
    pid: int
    started: str
    since: str
    token: str

    @classmethod
    def here(cls) -> Holder:
        """Return a holder for this process, with a new token."""
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
        """Return whether the process has ended; None if that can't be seen from here."""
        is_here = self.machine != "" and self.machine == _machine()
        return _started(self.pid) != self.started if is_here else None


class Lock:
    """The right to save to one prefix.

    Args:
        file: the lock file.
        what: the prefix, for messages.
    """

    def __init__(self, file: Path, what: str) -> None:
        self.file, self.what = file, what
        self._own: Holder | None = None
        self._done = threading.Event()

    @property
    def is_held(self) -> bool:
        """Return whether this object holds the lock, as far as it knows."""
        return self._own is not None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            TensorOptError: another process saves to this prefix; the message says which.
            InputError: the folder can't be written.
        """
        own = Holder.here()
        try:
            while not self._link(own):
                found, incomplete = self._read(), None
                if found is None:
                    incomplete = self._stamp()
                    time.sleep(LOOK_S)  # a lock file that is just being made may still be empty
                    found = self._read()
                if found is not None and not self._is_left_over(found):
                    raise TensorOptError(self._refusal(found))
                self._remove(found, incomplete)
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
        threading.Thread(target=self._keep_touched, args=[own], name="tensoropt-lock", daemon=True).start()

    def check(self) -> None:
        """Check that this process still holds the lock.

        Raises:
            TensorOptError: another process has taken it, since this one seemed dead.
        """
        found = self._read()
        if found is None or found != self._own:
            raise TensorOptError(self._refusal(found))

    def release(self) -> None:
        """Release the lock, if this process still holds it."""
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
        """Make the lock file with its content; return False if there is one already."""
        text, sibling = json.dumps(asdict(own)), self.file.with_name(f"{self.file.name}.{own.token}")
        try:
            sibling.write_text(text)
            os.link(sibling, self.file)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return self._create(text)
        finally:
            with contextlib.suppress(OSError):
                sibling.unlink()
        return True

    def _create(self, text: str) -> bool:
        """Make the lock file on a file system without links; return False if there is one already.

        The file then exists for a moment before its content is written.
        """
        try:
            with self.file.open("x") as file:
                file.write(text)
        except FileExistsError:
            return False
        return True

    def _read(self) -> Holder | None:
        """Return the holder that the lock file names; None if the file is missing or incomplete."""
        try:
            return _parsed(self.file.read_bytes())
        except OSError:
            return None

    def _is_left_over(self, found: Holder) -> bool:
        """Return whether the holder has ended. If it runs elsewhere, wait to see whether it still touches the file."""
        is_gone = found.is_gone
        if is_gone is not None:
            # If this process is the holder: its save was cut short, or another of its threads is saving (a token in _held).
            is_own = found.pid == os.getpid() and found.machine == _machine()
            return is_gone or (is_own and found.token not in _held)
        before, until = self._stamp(), time.monotonic() + STALE_S
        while time.monotonic() < until:
            time.sleep(LOOK_S)
            if self._stamp() != before:
                return self._read() != found
        return True

    def _stamp(self) -> object:
        """Return a stamp that changes when the holder touches its lock; None if the file is gone.

        The file is opened, so that a shared folder answers with current values.
        """
        try:
            with self.file.open() as file:
                status = os.fstat(file.fileno())
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def _remove(self, found: Holder | None, incomplete: object) -> None:
        """Remove the lock of a dead process, but never that of a process which was quicker to take it over.

        Args:
            found: the dead holder; None for a file that names none.
            incomplete: the stamp of such a file from when it was first seen. Another stamp is that of a newer lock, which
                may only not be written yet; None is that of no file.
        """
        with _alone_in(self.file.parent), contextlib.suppress(FileNotFoundError):
            if self._read() == found and (found is not None or (incomplete is not None and self._stamp() == incomplete)):
                self.file.unlink()

    def _keep_touched(self, own: Holder) -> None:
        while not self._done.wait(TOUCH_S):
            self._touch(own)

    def _touch(self, own: Holder) -> None:
        """Touch the lock file if it is still this holder's.

        It is read and touched by one descriptor, so that a file which takes its place in between isn't touched.
        """
        with contextlib.suppress(OSError), self.file.open("rb") as file:
            if _parsed(file.read()) == own:
                os.utime(file.fileno())


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Exclude other processes that remove left-over locks, where the file system has such locks, which NFS hasn't.

    Without them two processes may find a lock left over at the same moment, and the slower one may remove that of the
    quicker one, which notices by :meth:`Lock.check`.
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


def _parsed(content: bytes) -> Holder | None:
    """Return the holder that a lock file's content names; None if it is incomplete or damaged."""
    try:
        found = Holder(**json.loads(content))
    except (ValueError, TypeError, RecursionError):
        return None
    is_typed = all(isinstance(value, int if name == "pid" else str) for name, value in asdict(found).items())
    return found if is_typed else None


def _machine() -> str:
    """Return text that identifies this boot of this machine, and this namespace of processes on it; "" if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Return when a process started; "" if there is none."""
    try:
        # The 22nd field, counted after the name, which may have spaces.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
