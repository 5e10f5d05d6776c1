"""Count the bytes alive at once in a step's instructions: what :mod:`..memory.liveness` does with objects."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...common.compiled import inner as compiled
from ...common.compiled import njit
from . import array_layout as ix
from . import columns as c
from .instruct import write_instructions
from .running import N_WORKSPACES
from .step_records import write_records


@compiled
def _lasting(o: Any, t: Any, r: Any, m: Any) -> int:
    """Return the bytes that are alive all the time: sources, slots, and the workspaces of collectives."""
    total = 0
    for i in range(o[ix.N_SOURCES]):
        source = o[o[ix.SOURCES] + i]
        total += t[r[source], c.N_BYTES] + t[r[source], c.LASTING]
    for i in range(2 * N_WORKSPACES):
        total += m[m[ix.WORKSPACE] + i]
    return total


@compiled
def _find_ends(m: Any) -> int:
    """Find the instruction at which each buffer dies; return the bytes of those that are read and never written."""
    last, is_written, total = m[ix.LAST], m[ix.IS_WRITTEN], 0
    for buffer in range(m[ix.N_BUFFERS]):
        m[last + buffer] = -1
        m[is_written + buffer] = 0
        m[m[ix.IS_GONE] + buffer] = 0
        m[m[ix.SIZES] + buffer] = m[m[ix.BYTES] + buffer]
    for at in range(m[ix.N_RUN]):
        begin = m[ix.ENDS] + ix.ENDS_COLUMNS * m[m[ix.RUN] + at]
        end = begin + ix.ENDS_COLUMNS
        for i in range(m[ix.READS] + m[begin], m[ix.READS] + m[end]):
            m[last + m[i]] = at
        for i in range(m[ix.WRITES_OF] + m[begin + 1], m[ix.WRITES_OF] + m[end + 1]):
            m[last + m[i]] = at
            m[is_written + m[i]] = 1
    for buffer in range(m[ix.N_BUFFERS]):
        if m[last + buffer] >= 0 and not m[is_written + buffer]:
            total += m[m[ix.BYTES] + buffer]
    return total


@compiled
def _waits(m: Any, before: int, begin: int) -> int:
    """Return whether an instruction reads what the one before it writes."""
    for i in range(m[ix.WRITES_OF] + m[before + 1], m[ix.WRITES_OF] + m[before + ix.ENDS_COLUMNS + 1]):
        for j in range(m[ix.READS] + m[begin], m[ix.READS] + m[begin + ix.ENDS_COLUMNS]):
            if m[i] == m[j]:
                return 1
    return 0


@compiled
def _overwritten(m: Any, buffer: int, begin: int, at: int) -> int:
    """Return the buffer that an instruction writes a result over; -1 if there is none.

    Python's memory is overwritten only through a view of a part of it.
    """
    for i in range(m[begin + 2], m[begin + ix.ENDS_COLUMNS + 2]):
        over, size = m[m[ix.OVER] + 2 * i], m[m[ix.OVER] + 2 * i + 1]
        is_free = m[m[ix.LAST] + over] == at and not m[m[ix.IS_GONE] + over]
        if is_free and size == m[m[ix.BYTES] + buffer] and (size < m[m[ix.SIZES] + over] or not m[m[ix.IS_PYTHON_S] + over]):
            return over
    return -1


@compiled
def _end(m: Any, first: int, end: int, at: int, of_python: int) -> int:
    """Return the bytes of Python's or of other buffers, among a run of some, that die at an instruction."""
    died = 0
    for i in range(first, end):
        buffer = m[i]
        is_python_s = m[m[ix.IS_PYTHON_S] + buffer] != 0
        if m[m[ix.LAST] + buffer] == at and not m[m[ix.IS_GONE] + buffer] and is_python_s == (of_python != 0):
            m[m[ix.IS_GONE] + buffer] = 1
            died += m[m[ix.SIZES] + buffer]
    return died


@compiled
def _peak(m: Any, alive: int) -> int:
    """Return the most bytes alive at once, given those that are alive at the beginning."""
    peak, leaving, held, before, passes = alive, 0, 0, 0, 0
    m[m[ix.MOST]] = alive
    for at in range(m[ix.N_RUN]):
        begin = m[ix.ENDS] + ix.ENDS_COLUMNS * m[m[ix.RUN] + at]
        end = begin + ix.ENDS_COLUMNS
        calls_python = m[end + 4]
        if leaving and (calls_python or _waits(m, before, begin)):
            alive -= leaving
            leaving = 0
        for i in range(m[ix.WRITES_OF] + m[begin + 1], m[ix.WRITES_OF] + m[end + 1]):
            buffer = m[i]
            over = _overwritten(m, buffer, begin, at)
            if over >= 0:
                m[m[ix.IS_GONE] + over] = 1
                alive -= m[m[ix.SIZES] + over]
                m[m[ix.SIZES] + buffer] = m[m[ix.SIZES] + over]
                m[m[ix.IS_PYTHON_S] + buffer] |= m[m[ix.IS_PYTHON_S] + over]
            alive += m[m[ix.SIZES] + buffer]
        now = alive + m[end + 3]
        peak = max(peak, now)
        m[m[ix.MOST] + passes] = max(m[m[ix.MOST] + passes], now)
        if passes < m[ix.N_PASSES] and m[m[ix.BEGINS] + passes] == at:
            m[m[ix.ALIVE] + passes] = alive
            passes += 1
            m[m[ix.MOST] + passes] = now
        alive -= leaving
        died = 0
        for of_python in range(2):
            total = _end(m, m[ix.READS] + m[begin], m[ix.READS] + m[end], at, of_python)
            total += _end(m, m[ix.WRITES_OF] + m[begin + 1], m[ix.WRITES_OF] + m[end + 1], at, of_python)
            if of_python:
                died = total
            else:
                alive -= total
        leaving = held if calls_python else 0
        held = died if calls_python else held + died
        before = begin
    return peak


def _kernel(digest: int) -> Callable[[Any, Any, Any, Any, int], int]:
    """Return the kernel that Python calls, compiled by Numba with all that it calls, cached on disk and without the GIL.

    The digest, a number of at least 0 that is another one when one of these files changes, is part of the key by which
    Numba finds the compiled code; without it a change of another file than this one would go unnoticed.
    """

    def count_peak(o: Any, t: Any, r: Any, m: Any, overlaps: int) -> int:
        if digest < 0:
            return -1  # never: the digest must be used to be part of the compiled code's key
        write_records(o, t, r, m)
        write_instructions(o, t, r, m, overlaps)
        initial = _find_ends(m)
        return _peak(m, _lasting(o, t, r, m) + initial)

    return njit(count_peak, cache=True, error_model="numpy")


_OTHERS = (Path(__file__).parents[2] / name for name in ("common/compiled.py", "sharding/strategy.py"))
_NOT_COMPILED = ("outline.py", "peaks.py", "rows.py")
_HERE = (file for file in sorted(Path(__file__).parent.glob("*.py")) if file.name not in _NOT_COMPILED)
_SOURCES = (*_OTHERS, *_HERE)
count_peak = _kernel(zlib.crc32(b"".join(file.read_bytes() for file in _SOURCES)))
"""Return the most bytes that are alive at once in the step of a strategy, given the row of each site."""
