"""Add instructions on buffers to a run, as :mod:`..instructions` does: what they read, write and write over.

The names of the arguments are those of :mod:`.instruct`.
"""

from __future__ import annotations

from typing import Any

from ...common.settings import LAG
from .array_layout import (
    BYTES,
    COPIES,
    COPIES_OF,
    DELAYED,
    DUE,
    ENDS,
    ENDS_COLUMNS,
    EPOCH,
    FIRST_OPERATOR,
    IS_PYTHON_S,
    MADE,
    N_BUFFERS,
    N_COPIES,
    N_DELAYED,
    N_INSTRUCTIONS,
    N_OVER,
    N_READS,
    N_RUN,
    N_WRITES,
    OVER,
    PENDING,
    READS,
    RUN,
    WORKSPACE,
    WRITES_OF,
)
from .columns import (
    BACK_BYTES,
    BACK_COMMUNICATES,
    BACK_IS_VIEW,
    BACK_SCRATCH,
    BACK_WORK,
    COMMUNICATES,
    IS_VIEW,
    N_BYTES,
    PATH,
    SCRATCH,
    WORK,
    WORKSPACES,
)
from .compilation import compiled

NEVER = 1 << 60
FOR_UPDATES, MAY_WAIT = 1, 2
N_WORKSPACES = len(WORKSPACES)


@compiled
def new_buffer(o: Any, m: Any, n_bytes: int, is_python_s: int) -> int:
    """Return a new buffer."""
    number = m[N_BUFFERS]
    m[m[COPIES_OF] + o[FIRST_OPERATOR] + number] = -1
    m[m[BYTES] + number], m[m[IS_PYTHON_S] + number], m[m[PENDING] + number] = n_bytes, is_python_s, 0
    m[N_BUFFERS] += 1
    return number


@compiled
def read(m: Any, buffer: int) -> None:
    """Have the next instruction read a buffer."""
    if buffer >= 0:
        m[m[READS] + m[N_READS]] = buffer
        m[N_READS] += 1


@compiled
def write(m: Any, buffer: int) -> None:
    """Have the next instruction write a buffer."""
    m[m[WRITES_OF] + m[N_WRITES]] = buffer
    m[N_WRITES] += 1


@compiled
def may_overwrite(m: Any, buffer: int, n_bytes: int) -> None:
    """Let the next instruction write over a buffer, of which it reads so many bytes."""
    if buffer >= 0:
        at = m[OVER] + 2 * m[N_OVER]
        m[at], m[at + 1] = buffer, n_bytes
        m[N_OVER] += 1


@compiled
def catch_up(m: Any) -> None:
    """Run the delayed instructions."""
    for i in range(m[N_DELAYED]):
        m[m[RUN] + m[N_RUN]] = m[m[DELAYED] + i]
        m[N_RUN] += 1
    m[N_DELAYED] = 0
    m[EPOCH] += 1


@compiled
def end_instruction(m: Any, scratch_bytes: int, calls_python: int) -> int:
    """Return the number of a new instruction that does what was said since the last one."""
    number = m[N_INSTRUCTIONS]
    m[N_INSTRUCTIONS] += 1
    end = m[ENDS] + ENDS_COLUMNS * (number + 1)
    m[end], m[end + 1], m[end + 2], m[end + 3], m[end + 4] = (
        m[N_READS], m[N_WRITES], m[N_OVER], scratch_bytes, calls_python)
    return number


@compiled
def add(m: Any, scratch_bytes: int, calls_python: int, delay: int, overlaps: int) -> None:
    """Add an instruction that does what was said since the last one; see :meth:`..instructions.Instructions.add`.

    ``delay`` is FOR_UPDATES for one that is overlappable, MAY_WAIT for one that may wait, 0 for others.
    """
    number = end_instruction(m, scratch_bytes, calls_python)
    begin = m[ENDS] + ENDS_COLUMNS * number
    end = begin + ENDS_COLUMNS
    delayed = 0 if overlaps and delay == MAY_WAIT else delay
    is_needed = 0
    for i in range(m[READS] + m[begin], m[READS] + m[end]):
        pending = m[m[PENDING] + m[i]]
        if pending == m[EPOCH]:
            delayed = FOR_UPDATES
        elif pending == -m[EPOCH]:
            is_needed = 1
    if delayed:
        if m[N_DELAYED] == 0:
            m[DUE] = NEVER if overlaps else m[N_RUN] + LAG
        m[m[DELAYED] + m[N_DELAYED]] = number
        m[N_DELAYED] += 1
        for i in range(m[WRITES_OF] + m[begin + 1], m[WRITES_OF] + m[end + 1]):
            m[m[PENDING] + m[i]] = m[EPOCH] if delayed == FOR_UPDATES else -m[EPOCH]
        return
    if is_needed or (calls_python and not overlaps) or (m[N_DELAYED] and m[DUE] <= m[N_RUN]):
        catch_up(m)
    m[m[RUN] + m[N_RUN]] = number
    m[N_RUN] += 1


@compiled
def move(o: Any, t: Any, m: Any, row: int, source: int, after: int, overlaps: int) -> int:
    """Reshard a buffer forward, once another one is there; return the resharded buffer."""
    if t[row, IS_VIEW]:
        return source
    moved = new_buffer(o, m, t[row, N_BYTES], t[row, COMMUNICATES])
    read(m, source)
    read(m, after)
    write(m, moved)
    add(m, t[row, SCRATCH], t[row, COMMUNICATES], 0, overlaps)
    for i in range(N_WORKSPACES):
        m[m[WORKSPACE] + i] = max(m[m[WORKSPACE] + i], t[row, WORK + i])
    return moved


@compiled
def copy_of(o: Any, t: Any, m: Any, row: int, site: int, overlaps: int) -> int:
    """Reshard the value at a site forward; a copy that no collective makes is made once."""
    source = m[m[MADE] + site]
    if t[row, COMMUNICATES]:
        return move(o, t, m, row, source, -1, overlaps)
    first = m[COPIES_OF] + (o[FIRST_OPERATOR] + source if source >= 0 else site)
    number = m[first]
    while number >= 0:
        at = m[COPIES] + 3 * number
        if m[at] == t[row, PATH]:
            return m[at + 1]
        number = m[at + 2]
    moved, at = move(o, t, m, row, source, -1, overlaps), m[COPIES] + 3 * m[N_COPIES]
    m[at], m[at + 1], m[at + 2] = t[row, PATH], moved, m[first]
    m[first] = m[N_COPIES]
    m[N_COPIES] += 1
    return moved


@compiled
def move_back(o: Any, t: Any, m: Any, row: int, source: int, is_overlappable: int, overlaps: int) -> int:
    """Bring a gradient back through a resharding; return the buffer after it."""
    if t[row, BACK_IS_VIEW]:
        return source
    communicates = t[row, BACK_COMMUNICATES]
    moved = new_buffer(o, m, t[row, BACK_BYTES], communicates)
    read(m, source)
    write(m, moved)
    delay = (FOR_UPDATES if is_overlappable else MAY_WAIT) if communicates else 0
    add(m, t[row, BACK_SCRATCH], communicates, delay, overlaps)
    # Collectives that overlap with compute have a workspace of their own.
    first = m[WORKSPACE] + (N_WORKSPACES if is_overlappable and overlaps else 0)
    for i in range(N_WORKSPACES):
        m[first + i] = max(m[first + i], t[row, BACK_WORK + i])
    return moved
