"""Read and write result files: an existing file stays complete until the new one is, and no partial file is ever left."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .errors import InputError, cut, describe, short
from .source_lines import running_line

PLAN = "tensoropt/plan", 6
FRONTIER = "tensoropt/frontier", 10
CURVE = "tensoropt/curve", 2
CHECK = "tensoropt/check", 2
"""The formats of files that several packages read, with their versions."""
_CHECKSUM = '"checksum": "'


def path_text(path: object, call: str) -> str:
    """Return a path as text.

    Args:
        call: the one that takes the path, which the message names.

    Raises:
        InputError: ``path`` isn't a path.
    """
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise InputError(f"{call} ({running_line()}) takes the path of a file, got {short(path)}")
    return os.fsdecode(path)


def write_atomically(file: str | os.PathLike[str], write: Callable[[Path], object], name: str) -> None:
    """Have ``write`` make a file beside the target, which then replaces the target.

    A link stays one: what it leads to is replaced. A device or a pipe, such as ``/dev/stdout``, is written to itself.

    Args:
        name: that of what is saved, for the message.

    Raises:
        InputError: the file can't be written.
    """
    path = target = Path(file)
    if _is_written_to(target):
        try:
            write(target)
        except OSError as error:
            raise InputError(f"{name} can't be saved as '{target}': {error.strerror}") from error
        return
    if target.is_symlink():
        target = target.resolve()
    partial = target.with_name(f"{target.stem}.{os.getpid()}.partial{target.suffix}")
    try:
        write(partial)
        partial.replace(target)
    except OSError as error:
        raise InputError(f"{name} can't be saved as '{path}': {error.strerror}") from error
    finally:
        # After an interruption too; after a success the partial file no longer exists.
        with contextlib.suppress(OSError):
            partial.unlink()


def _is_written_to(target: Path) -> bool:
    """Return whether a path is that of a device or a pipe: replaced by a file, it would be lost to all who use it."""
    return target.exists() and not target.is_file() and not target.is_dir()


def write_json(file: str | os.PathLike[str], value: dict[str, Any], name: str) -> None:
    """Write a JSON file; see :func:`write_atomically`."""
    write_atomically(file, lambda partial: partial.write_text(json.dumps(value, indent=1) + "\n"), name)


def parse_json(data: bytes, allow_any_number: bool = False) -> Any:
    """Return the value of a JSON text that was written by someone else, after checking that it can be computed with.

    Args:
        allow_any_number: whether the caller itself handles numbers that are NaN or infinite.

    Raises:
        JsonError: the text isn't complete JSON in UTF-8, is nested too deeply, has a field twice, or has a number that is
            none (``NaN``, ``Infinity``) or too large.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise JsonError(f"got bytes that are no text, expected UTF-8: {error.reason} at byte {error.start}") from error
    try:
        real, constant = (float, float) if allow_any_number else (_real, _no_number)
        whole: Callable[[str], int] = _integer
        zeros = data.translate(_DIGITS_TO_0)
        if not any(part in zeros for part in _LONG):  # calls for each number take most of the time of a large file
            real, whole = float, int
        value = json.loads(
            text, parse_int=whole, parse_float=real, parse_constant=constant, object_pairs_hook=_without_duplicates
        )
        if "\\" in text and "\\u" in text:  # one character is found in a tenth of the time
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise JsonError("half of a character is escaped, which is no text") from error
    except RecursionError as error:
        raise JsonError(_TOO_DEEP) from error
    except json.JSONDecodeError as error:
        raise JsonError(f"line {error.lineno}, column {error.colno}: {error.msg}") from error
    level = [value] if type(value) is dict or type(value) is list else []
    for _ in range(MOST_NESTED + 1):
        if not level:
            return value
        inside = [container.values() if type(container) is dict else container for container in level]
        level = [inner for items in inside for inner in items if type(inner) is dict or type(inner) is list]
    raise JsonError(_TOO_DEEP)


class JsonError(ValueError):
    """A JSON text that can't be used; the message says why, and doesn't name the file."""


MOST_NESTED, MOST_DIGITS = 40, 30
_DIGITS_TO_0 = bytes.maketrans(b"123456789+E", b"0000000000e")
_LONG = (b"0" * (MOST_DIGITS + 1), b"e000")
"""Parts of a text whose digits and plus signs are written as zeros. A number that is too large has one: many digits, or a
long exponent above 0."""
_TOO_DEEP = f"it is nested more than {MOST_NESTED} levels deep"


def _integer(text: str) -> int:
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
        duplicate = next(name for name in names if names.count(name) > 1)
        raise JsonError(f"{cut(duplicate, 60)}: occurs twice in one object, expected each field once")
    return result


def read_json(file: str | os.PathLike[str], kind: str, format_name: str, version: int) -> dict[str, Any]:
    """Read a JSON file that states its own format and version.

    Raises:
        InputError: the file can't be read, is cut off, or has another format or version.
    """
    return read_json_of(file, {kind: (format_name, version)})[1]


def read_json_of(
    file: str | os.PathLike[str],
    kinds: Mapping[str, tuple[str, int]],
    checks: Mapping[str, Callable[[bytes, dict[str, Any]], None]] | None = None,
) -> tuple[str, dict[str, Any]]:
    """Read a JSON file of one of several kinds; return the kind and the value.

    Args:
        kinds: the format and the version of each kind, by its name.
        checks: by kind, what is called with the bytes and the value of a file of the right version.

    Raises:
        InputError: the file can't be read, is cut off, or has another format or version.
    """
    kinds_text = " or a ".join(kinds)
    named = f"{kinds_text} '{cut(file)}'" if len(kinds) == 1 else f"'{cut(file)}'"
    path_text(file, f"load of a {kinds_text}")
    try:
        data = Path(file).read_bytes()
        value = parse_json(data)
    except OSError as error:
        raise InputError(f"{named} can't be read: {error.strerror}") from error
    except ValueError as error:  # a path with a zero byte is one too
        raise InputError(f"{named} is not whole JSON ({cut(error)}); save it again with {next(iter(kinds))}.save") from error
    stated = value.get("format") if isinstance(value, dict) else type(value).__name__
    kind = next((name for name, (format_name, _) in kinds.items() if format_name == stated), None)
    if kind is None:
        expected = " or ".join(repr(format_name) for format_name, _ in kinds.values())
        raise InputError(f"'{cut(file)}' is not a {kinds_text}: got format {short(stated)}, expected {expected}")
    version = kinds[kind][1]
    if value.get("version") != version or isinstance(value["version"], bool):
        raise InputError(
            f"{kind} '{cut(file)}' has version {short(value.get('version'))}, expected {version}; make it again"
        )
    if checks and kind in checks:
        checks[kind](data, value)
    return kind, value


DAMAGE = (KeyError, ValueError, TypeError, IndexError, AttributeError, ArithmeticError, RecursionError, AssertionError)
"""The errors that reading a value may end in where the file isn't what was written."""


@contextlib.contextmanager
def reading_value(kind: str, file: str | os.PathLike[str]) -> Iterator[None]:
    """Turn errors that show a damaged file into one sentence, while the file's value is read.

    Raises:
        InputError: the file's value isn't what was written.
    """
    try:
        yield
    except DAMAGE as error:
        raise InputError(f"{kind} '{cut(file)}' is damaged ({type(error).__name__}: {cut(error)}); save it again") from error


def signed(text: str) -> str:
    """Return the text of a JSON object with a checksum of all before it as its last field.

    The checksum is that of the text, not of the value in it: to write a value of 5 MB again with sorted keys takes ten times
    as long as to add up its text.
    """
    head = f"{text.rstrip().removesuffix('}').rstrip()},\n"
    return f'{head}{_CHECKSUM}{_checksum(head.encode())}"\n}}\n'


def check_signed(kind: str, file: str | os.PathLike[str], data: bytes, value: dict[str, Any]) -> None:
    """Refuse a file whose text was changed since it was signed.

    Args:
        kind: that of the file, for the message.
        value: its JSON value, which loses its checksum.

    Raises:
        InputError: it has no checksum, or was changed.
    """
    with reading_value(kind, file):
        stated = value.pop("checksum")
    head, _, tail = data.rpartition(_CHECKSUM.encode())
    actual = _checksum(head)
    if stated != actual or "".join(tail.decode().split()) != f'{actual}"}}':
        raise InputError(
            f"{kind} '{cut(file)}' was changed since it was saved: its checksum is {short(stated)}, its contents' "
            f"is {actual!r}; save it again, after a search with force= for what should differ"
        )


def _checksum(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]


def name_in_file(value: object) -> str:
    """Return a value that a file gives as a name, after checking that it is text.

    Raises:
        TypeError: the value isn't text.
    """
    if not isinstance(value, str):
        raise TypeError(f"expected a name, got {short(value)}")
    return value


@contextlib.contextmanager
def needing_folder(sentence: str) -> Iterator[None]:
    """Refuse, by a sentence on what can't be done then, a folder that can't be made or written within this context.

    Raises:
        InputError: it can't.
    """
    try:
        yield
    except OSError as error:
        reason, expected = f"{error.strerror} for '{error.filename}'", "a folder that can be written"
        raise InputError(describe(sentence, got=reason, expected=expected)) from error


def check_writable(file: str | os.PathLike[str], name: str) -> None:
    """Refuse, before long work, a file that couldn't be written after it.

    Raises:
        InputError: the file's folder doesn't exist or can't be written, or the file is a folder itself.
    """
    target = Path(file)
    if target.is_dir():
        raise InputError(f"{name} can't be saved as '{target}': that is a folder; give a file's name")
    if _is_written_to(target):
        return
    folder = (target.resolve() if target.is_symlink() else target).parent
    if not folder.is_dir():
        raise InputError(f"{name} can't be saved as '{target}': there is no folder '{folder}'; make it first")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{name} can't be saved as '{target}': folder '{folder}' can't be written")
