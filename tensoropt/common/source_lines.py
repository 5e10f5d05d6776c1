"""Find the line of the user's code that made an operator, and the line that a thread is at."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from types import FrameType
from typing import Any

_PACKAGES = tuple(os.sep + os.path.join("site-packages", name) + os.sep for name in ("tensorflow", "keras"))
_DATASETS = os.path.join(_PACKAGES[0], "python", "data", "")
_OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_RUN_SCRIPTS = tuple(os.path.join(_OWN_FOLDER, "unchanged", name) for name in ("__main__.py", "script.py"))
_ZOO_FOLDER = os.path.join(_OWN_FOLDER, "zoo", "")
_STANDARD_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_LIBRARIES = tuple(
    {os.path.join(path, "") for path in map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib", "scripts"))}
)
_SCRIPTS = os.path.join(sysconfig.get_path("scripts"), "")
# The line of a call whose work is done later.
_called_at: ContextVar[str] = ContextVar("tensoropt_called_at", default="")


def source_line(op: Any) -> str:
    """Return the innermost line of the user's code in the traceback of a TensorFlow operation, as ``file:line``."""
    for frame in reversed(op.traceback or ()):
        if is_users(frame.filename):
            return f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return ""


@contextmanager
def called_at(line: str) -> Iterator[None]:
    """Have :func:`running_line` return a line within this context: that of an earlier call, whose work is done now."""
    token = _called_at.set(line)
    try:
        yield
    finally:
        _called_at.reset(token)


def running_line() -> str:
    """Return the innermost line of the user's code that is being executed, as ``file:line``."""
    return line_at(*running_at())


def running_at(depth: int = 1) -> tuple[str, FrameType]:
    """Return what :func:`line_at` makes a line of: quick, for a line that is rarely asked for.

    The frame is the caller's, or one so many further out; who keeps it keeps its variables.
    """
    return _called_at.get(), sys._getframe(depth)


def line_at(called: str, frame: FrameType) -> str:
    """Return the innermost line of the user's code, as ``file:line``, that a thread executes in a frame or its callers.

    Args:
        called, frame: what :func:`running_at` returned to the thread.
    """
    if called:
        return called
    for caller in _outwards(frame):
        if _kind(caller.f_code.co_filename) == _USERS:
            return f"{os.path.basename(caller.f_code.co_filename)}:{caller.f_lineno}"
    return "an unknown line"


@cache
def is_users(filename: str) -> bool:
    """Return whether a file is the user's code, or a library that it builds models with.

    The answer is cached, since each frame of each operator asks.
    """
    path = os.path.abspath(filename)
    is_own = path.startswith(_OWN_FOLDER) and not path.startswith(_ZOO_FOLDER)
    is_standard = path.startswith(_STANDARD_LIBRARY) and "-packages" + os.sep not in path
    if filename.startswith("<frozen ") or path.startswith(_SCRIPTS):  # what starts a command, as python -m and tensoropt do
        return False
    return not is_own and not is_standard and not any(part in path for part in _PACKAGES)


@dataclass(frozen=True, slots=True)
class CodeLocation:
    """The place in the code that a thread is at.

    Attributes:
        call: the function of TensorOpt that the user's code called, with the line of the call; "" outside of such a call.
        line: the innermost line of the user's code, as ``file:line``; "" where there is none.
        is_users: whether the user's code runs: outside of a call, or in a callback within it.
    """

    call: str = ""
    line: str = ""
    is_users: bool = True

    def __str__(self) -> str:
        if not self.is_users:
            return f"in {self.call}"
        inside = f", called by {self.call}" if self.call else ""
        return f"in the user's code{f' at {self.line}' if self.line else ''}{inside}"


_OURS, _USERS, _LIBRARY = "ours", "user's", "library"


def code_location(frame: FrameType | None) -> CodeLocation:
    """Return where a thread is, given its innermost frame; frames of libraries are skipped, and only their callers count."""
    innermost, line, call, outermost_call = "", "", "", ""
    for caller in _outwards(frame):
        kind = _kind(caller.f_code.co_filename)
        if kind == _LIBRARY:
            continue
        innermost = innermost or kind
        if kind == _OURS:
            if caller.f_code.co_name == "__getattribute__":
                continue  # on the way to a property, by whose name the user called it
            call = outermost_call = caller.f_code.co_name
            continue
        at = f"{os.path.basename(caller.f_code.co_filename)}:{caller.f_lineno}"
        line = line or at
        if call:
            outermost_call, call = f"{call} at {at}", ""
    return CodeLocation(outermost_call, line, innermost != _OURS)


def is_reading(frame: FrameType | None) -> bool:
    """Return whether a thread in a call of TensorOpt, given its innermost frame, waits for an element of a dataset."""
    for caller in _outwards(frame):
        if _kind(caller.f_code.co_filename) != _LIBRARY:
            return False
        if _DATASETS in caller.f_code.co_filename:
            return True
    return False


def is_in_dataset() -> bool:
    """Return whether a function of a dataset is being traced."""
    return any(_DATASETS in frame.f_code.co_filename for frame in _outwards(sys._getframe()))


def called_back_line(frame: FrameType | None) -> str:
    """Return the line that a thread is at in the user's code, if TensorFlow or Keras has called that; else "".

    Such code makes data: a generator, a ``py_function``, a ``PyDataset``. Neither calls threads that the user starts.
    """
    line = ""
    for caller in _outwards(frame):
        filename = caller.f_code.co_filename
        kind = _kind(filename)
        if line and any(part in filename for part in _PACKAGES):
            return line
        if not line and kind == _OURS:
            return ""
        if not line and kind == _USERS:
            line = f"{os.path.basename(filename)}:{caller.f_lineno}"
    return ""


def users_line_of(error: BaseException) -> str:
    """Return the innermost line of the user's code that an error went through, as ``file:line``; "" if there is none."""
    line, trace = "", error.__traceback__
    while trace is not None:
        if _kind(trace.tb_frame.f_code.co_filename) == _USERS:
            line = f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return line


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


@cache
def _kind(filename: str) -> str:
    """Return whose code a file is: TensorOpt's, the user's or a library's."""
    if filename.startswith("<"):
        return _USERS if filename in ("<string>", "<stdin>") else _LIBRARY
    path = os.path.abspath(filename)
    if path.startswith(_OWN_FOLDER):
        return _LIBRARY if path in _RUN_SCRIPTS else _OURS  # those don't call what the script does
    generated = os.path.basename(path).startswith("__autograph_generated")
    return _LIBRARY if generated or path.startswith(_LIBRARIES) or path == sys.executable else _USERS
