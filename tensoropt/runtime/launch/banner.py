"""Leave out what mpirun says of an exit code, since the ranks have said why they end."""

from __future__ import annotations

import os
import re
from contextlib import suppress

_RULE = b"-" * 74 + b"\n"
_BEGINNING = _RULE + b"prterun detected that one or more processes exited with non-zero status,\n"
_BANNER = re.compile(b"^" + _BEGINNING + b".*?^" + _RULE, re.MULTILINE | re.DOTALL)
_MAY_BEGIN = re.compile(b"^-", re.MULTILINE)
_CHUNK_BYTES = 1 << 16


def copy_without_banner(source: int, target: int) -> None:
    """Copy a stream of mpirun's until its end, without mpirun's banner about an exit code. Both are file descriptors."""
    held, begins_line = b"", True
    with suppress(OSError), open(target, "wb", closefd=False) as file:
        while chunk := os.read(source, _CHUNK_BYTES):
            held = _BANNER.sub(b"", held + chunk)
            starts = (match.start() for match in _MAY_BEGIN.finditer(held) if match.start() or begins_line)
            n_written = next((start for start in starts if _begins(held[start:])), len(held))
            file.write(held[:n_written])
            file.flush()
            if n_written:
                begins_line = held[n_written - 1 : n_written] == b"\n"
            held = held[n_written:]
        file.write(held)
    with suppress(OSError):  # nobody takes it any more, but mpirun mustn't wait for that
        while os.read(source, _CHUNK_BYTES):
            pass


def _begins(text: bytes) -> bool:
    """Return whether a text is a part of the banner, from its beginning."""
    return text.startswith(_BEGINNING[: len(text)]) or text.startswith(_BEGINNING)
