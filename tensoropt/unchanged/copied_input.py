"""Give ranks the standard input of ``tensoropt run``; mpirun gives it to rank 0 alone, and without its end."""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

COPY_AT = "copy_at"
"""The key in the options of the file that standard input is copied to."""
_END = ".end"
_WAIT_S = 0.02


@contextmanager
def copied_input() -> Iterator[dict[str, str]]:
    """Copy standard input to a file while this context lasts; return the option that names it, none for a terminal's."""
    if os.isatty(0) or not os.path.exists("/proc/self/fd/0"):
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="tensoropt-input-") as folder:
        path = Path(folder, "input")
        path.touch()

        def copy() -> None:
            with suppress(FileNotFoundError), path.open("wb", 0) as file, open(0, "rb", 0, closefd=False) as source:
                shutil.copyfileobj(source, file)
                Path(f"{path}{_END}").touch()  # the folder may be gone by now

        threading.Thread(target=copy, daemon=True).start()
        yield {COPY_AT: str(path)}


def opened_copy(path: str) -> TextIO:
    """Return a stream of what is copied to a file; standard input itself on a machine that doesn't have the file."""
    return io.TextIOWrapper(io.BufferedReader(_Followed(path))) if os.path.exists(path) else sys.stdin


class _Followed(io.RawIOBase):
    """The bytes of a file that grows until another file says that it has ended."""

    def __init__(self, path: str) -> None:
        self._file, self._end = open(path, "rb", buffering=0), Path(path + _END)  # noqa: SIM115

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        while True:
            is_whole = self._end.exists()
            n_bytes = self._file.readinto(buffer)
            if n_bytes or is_whole:
                return n_bytes or 0
            time.sleep(_WAIT_S)
