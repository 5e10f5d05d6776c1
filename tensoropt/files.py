"""Reading and writing result files: one that is there stays whole until the new one is; no part of one is ever left."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .errors import InputError, short
from .source_lines import calling_line


def path_text(path: object, what: str) -> str:
    """Return a path as text.

    Raises:
        InputError: it is none; ``what`` takes it stands in the message.
    """
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise InputError(f"{what} ({calling_line()}) takes the path of a file, got {short(path)}")
    return os.fsdecode(path)


def write_atomically(file: str | os.PathLike[str], write: Callable[[Path], object], what: str) -> None:
    """Have ``write`` make a file beside the target, which then takes its place.

    Raises:
        InputError: it can't be written; ``what`` it is stands in the message.
    """
    target = Path(file)
    partial = target.with_name(f"{target.stem}.{os.getpid()}.partial{target.suffix}")
    try:
        write(partial)
        partial.replace(target)
    except OSError as error:
        raise InputError(f"{what} can't be saved as '{target}': {error.strerror}") from error
    finally:
        # After an interruption too; where all went well it is there no more.
        with contextlib.suppress(OSError):
            partial.unlink()


def write_json(file: str | os.PathLike[str], value: dict[str, Any], what: str) -> None:
    """Write a JSON file; see :func:`write_atomically`."""
    write_atomically(file, lambda partial: partial.write_text(json.dumps(value, indent=1) + "\n"), what)


def read_json(file: str | os.PathLike[str], what: str, format_name: str, version: int) -> dict[str, Any]:
    """Read a JSON file that says of itself what it is.

    Raises:
        InputError: it can't be read, is cut off, is of another format, or of another version.
    """
    try:
        value = json.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{what} '{file}' can't be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{what} '{file}' is not whole JSON ({error}); save it again with {what}.save") from error
    if not isinstance(value, dict) or value.get("format") != format_name:
        got = value.get("format") if isinstance(value, dict) else type(value).__name__
        raise InputError(f"'{file}' is not a {what}: got format {got!r}, expected {format_name!r}")
    if value.get("version") != version:
        raise InputError(f"{what} '{file}' has version {value.get('version')!r}, expected {version}; make it again")
    return value


def check_writable(file: str | os.PathLike[str], what: str) -> None:
    """Refuse, before long work, a file that can't be written after it.

    Raises:
        InputError: its folder isn't there or can't be written, or it is a folder itself.
    """
    target = Path(file)
    if target.is_dir():
        raise InputError(f"{what} can't be saved as '{target}': that is a folder; give a file's name")
    folder = target.parent
    if not folder.is_dir():
        raise InputError(f"{what} can't be saved as '{target}': there is no folder '{folder}'; make it first")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{what} can't be saved as '{target}': folder '{folder}' can't be written")
