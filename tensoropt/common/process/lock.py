"""Hold a lock file, which one process can do at a time, on all machines that share its folder.

The system locks the file, or a shared folder's server does, and they release the lock of a process that ends, however it
ends. The file names its holder, for others to read. A file system without locks, such as a Lustre mounted without them,
doesn't keep processes apart.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import time
from io import TextIOWrapper
from pathlib import Path


class Lock:
    """A lock file, not held yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIOWrapper | None = None

    @property
    def is_held(self) -> bool:
        return self._file is not None

    def acquire(self) -> str | None:
        """Take the lock and return None, or return who holds it; raise OSError if the file can't be made."""
        while self._file is None:
            file = self.path.open("a+")
            try:
                _lock(file)
                # Its last holder may have removed the file since it was opened.
                if _is_at(file, self.path):
                    self._file = file
                    file.truncate(0)
                    file.write(
                        f"process {os.getpid()} on {socket.gethostname()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}"
                    )
                    file.flush()
            except BlockingIOError:
                file.seek(0)
                return file.read() or "another process"
            finally:
                if self._file is not file:
                    file.close()
        return None

    def release(self) -> None:
        """Release the lock and remove its file, if this object holds it."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()
            self._file.close()
            self._file = None

    def __del__(self) -> None:
        """Release the lock of a save that nobody finishes."""
        self.release()


def _is_at(file: TextIOWrapper, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _lock(file: TextIOWrapper) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
            raise
