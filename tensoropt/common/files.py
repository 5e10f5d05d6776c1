"""Reading and writing result files: one that is there stays whole until the new one is; no part of one is ever left."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from .errors import InputError, cut, short
from .source_lines import running_line


def path_text(path: object, what: str) -> str:
    """Return a path as text.

    Raises:
        InputError: it is none; ``what`` takes it stands in the message.
    """
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise InputError(f"{what} ({running_line()}) takes the path of a file, got {short(path)}")
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


def parse_json(data: bytes, any_number: bool = False) -> Any:
    """Return the value of a JSON text in which whoever wrote it holds to what can be computed with.

    Args:
        any_number: whether whoever reads the value looks after numbers that are none or infinite.

    Raises:
        JsonError: it is no whole JSON in UTF-8, is nested too deeply, has a field twice, or a number that is none (``NaN``,
            ``Infinity``) or too large.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise JsonError(f"got bytes that are no text, expected UTF-8: {error.reason} at byte {error.start}") from error
    try:
        real, constant = (float, float) if any_number else (_real, _no_number)
        value = json.loads(
            text, parse_int=_whole, parse_float=real, parse_constant=constant, object_pairs_hook=_without_duplicates
        )
    except RecursionError as error:
        raise JsonError(_TOO_DEEP) from error
    except json.JSONDecodeError as error:
        raise JsonError(f"line {error.lineno}, column {error.colno}: {error.msg}") from error
    if "\\u" in text:
        _check_is_text(value)
    level = [value]
    for _ in range(MOST_NESTED):
        level = [inner for each in level for inner in _inside(each)]
        if not level:
            return value
    raise JsonError(_TOO_DEEP)


class JsonError(ValueError):
    """A text isn't JSON that can be used; says why, without the file."""


MOST_NESTED, MOST_DIGITS = 40, 30
_TOO_DEEP = f"it is nested more than {MOST_NESTED} levels deep"


def _check_is_text(value: Any) -> None:
    """Refuse halves of characters, which an escape may name and nothing can write."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise JsonError("half of a character is escaped, which is no text") from error
    except RecursionError as error:
        raise JsonError(_TOO_DEEP) from error


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return (each for each in value.values() if isinstance(each, (dict, list)))
    return (each for each in value if isinstance(each, (dict, list))) if isinstance(value, list) else ()


def _whole(text: str) -> int:
    if len(text) > MOST_DIGITS + text.startswith("-"):
        raise JsonError(f"a whole number has {len(text)} digits, expected at most {MOST_DIGITS}")
    return int(text)


def _real(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise JsonError(f"the number {cut(text, 40)} is too large")
    return value


def _no_number(text: str) -> float:
    raise JsonError(f"got {text} where a number belongs")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise JsonError(f"{cut(twice, 60)}: occurs twice in one object, expected each field once")
    return result


def read_json(file: str | os.PathLike[str], what: str, format_name: str, version: int) -> dict[str, Any]:
    """Read a JSON file that says of itself what it is.

    Raises:
        InputError: it can't be read, is cut off, is of another format, or of another version.
    """
    path_text(file, f"load of a {what}")
    try:
        value = parse_json(Path(file).read_bytes())
    except OSError as error:
        raise InputError(f"{what} '{cut(file)}' can't be read: {error.strerror}") from error
    except ValueError as error:  # a path with a zero byte is one too
        raise InputError(f"{what} '{cut(file)}' is not whole JSON ({cut(error)}); save it again with {what}.save") from error
    if not isinstance(value, dict) or value.get("format") != format_name:
        got = value.get("format") if isinstance(value, dict) else type(value).__name__
        raise InputError(f"'{cut(file)}' is not a {what}: got format {short(got)}, expected {format_name!r}")
    if value.get("version") != version or isinstance(value["version"], bool):
        raise InputError(
            f"{what} '{cut(file)}' has version {short(value.get('version'))}, expected {version}; make it again"
        )
    return value


DAMAGE = (KeyError, ValueError, TypeError, IndexError, AttributeError, ArithmeticError, RecursionError, AssertionError)
"""What reading a file's value ends in where the file isn't what was written."""


@contextlib.contextmanager
def reading_value(what: str, file: str | os.PathLike[str]) -> Iterator[None]:
    """Say in one sentence that a file's value isn't what was written.

    Raises:
        InputError: it isn't.
    """
    try:
        yield
    except DAMAGE as error:
        raise InputError(
            f"{what} '{cut(file)}' is damaged ({type(error).__name__}: {cut(error)}); save it again"
        ) from error


def name_of(value: object) -> str:
    """Return a name that a file gives.

    Raises:
        TypeError: it is no text.
    """
    if not isinstance(value, str):
        raise TypeError(f"expected a name, got {short(value)}")
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
