"""Add instructions on buffers to a run, as :mod:`..memory.instructions` does: what they read, write and write over.

The names of the arguments are those of :mod:`.instruct`.
"""

from __future__ import annotations

from typing import Any

from ...common.compiled import inner as compiled
from ...common.settings import LAG
from . import array_layout as ix
from . import columns as c

NEVER = 1 << 60
FOR_UPDATES, MAY_WAIT = 1, 2
N_WORKSPACES = len(c.WORKSPACES)


@compiled
def new_buffer(o: Any, m: Any, n_bytes: int, is_python_s: int) -> int:
    number = m[ix.N_BUFFERS]
    m[m[ix.COPIES_OF] + o[ix.FIRST_OPERATOR] + number] = -1
    m[m[ix.BYTES] + number], m[m[ix.IS_PYTHON_S] + number], m[m[ix.PENDING] + number] = n_bytes, is_python_s, 0
    m[ix.N_BUFFERS] += 1
    return number


@compiled
def read(m: Any, buffer: int) -> None:
    """Have the next instruction read a buffer."""
    if buffer >= 0:
        m[m[ix.READS] + m[ix.N_READS]] = buffer
        m[ix.N_READS] += 1


@compiled
def write(m: Any, buffer: int) -> None:
    """Have the next instruction write a buffer."""
    m[m[ix.WRITES_OF] + m[ix.N_WRITES]] = buffer
    m[ix.N_WRITES] += 1


@compiled
def may_overwrite(m: Any, buffer: int, n_bytes: int) -> None:
    """Let the next instruction write over a buffer, of which it reads so many bytes."""
    if buffer >= 0:
        at = m[ix.OVER] + 2 * m[ix.N_OVER]
        m[at], m[at + 1] = buffer, n_bytes
        m[ix.N_OVER] += 1


@compiled
def catch_up(m: Any) -> None:
    """Run the delayed instructions."""
    for i in range(m[ix.N_DELAYED]):
        m[m[ix.RUN] + m[ix.N_RUN]] = m[m[ix.DELAYED] + i]
        m[ix.N_RUN] += 1
    m[ix.N_DELAYED] = 0
    m[ix.EPOCH] += 1


@compiled
def end_instruction(m: Any, scratch_bytes: int, calls_python: int) -> int:
    """Return the number of a new instruction that does what was said since the last one."""
    number = m[ix.N_INSTRUCTIONS]
    m[ix.N_INSTRUCTIONS] += 1
    end = m[ix.ENDS] + ix.ENDS_COLUMNS * (number + 1)
    m[end], m[end + 1], m[end + 2], m[end + 3], m[end + 4] = (
        m[ix.N_READS], m[ix.N_WRITES], m[ix.N_OVER], scratch_bytes, calls_python)
    return number


@compiled
def add(m: Any, scratch_bytes: int, calls_python: int, delay: int, overlaps: int) -> None:
    """Add an instruction that does what was said since the last one; see :meth:`..memory.instructions.Instructions.add`.

    ``delay`` is FOR_UPDATES for one that is overlappable, MAY_WAIT for one that may wait, 0 for others.
    """
    number = end_instruction(m, scratch_bytes, calls_python)
    begin = m[ix.ENDS] + ix.ENDS_COLUMNS * number
    end = begin + ix.ENDS_COLUMNS
    delayed = 0 if overlaps and delay == MAY_WAIT else delay
    is_needed = 0
    for i in range(m[ix.READS] + m[begin], m[ix.READS] + m[end]):
        pending = m[m[ix.PENDING] + m[i]]
        if pending == m[ix.EPOCH]:
            delayed = FOR_UPDATES
        elif pending == -m[ix.EPOCH]:
            is_needed = 1
    if delayed:
        if m[ix.N_DELAYED] == 0:
            m[ix.DUE] = NEVER if overlaps else m[ix.N_RUN] + LAG
        m[m[ix.DELAYED] + m[ix.N_DELAYED]] = number
        m[ix.N_DELAYED] += 1
        for i in range(m[ix.WRITES_OF] + m[begin + 1], m[ix.WRITES_OF] + m[end + 1]):
            m[m[ix.PENDING] + m[i]] = m[ix.EPOCH] if delayed == FOR_UPDATES else -m[ix.EPOCH]
        return
    if is_needed or (calls_python and not overlaps) or (m[ix.N_DELAYED] and m[ix.DUE] <= m[ix.N_RUN]):
        catch_up(m)
    m[m[ix.RUN] + m[ix.N_RUN]] = number
    m[ix.N_RUN] += 1


@compiled
def move(o: Any, t: Any, m: Any, row: int, source: int, after: int, overlaps: int) -> int:
    """Reshard a buffer forward, once another one is there; return the resharded buffer."""
    if t[row, c.IS_VIEW]:
        return source
    moved = new_buffer(o, m, t[row, c.N_BYTES], t[row, c.COMMUNICATES])
    read(m, source)
    read(m, after)
    write(m, moved)
    add(m, t[row, c.SCRATCH], t[row, c.COMMUNICATES], 0, overlaps)
    for i in range(N_WORKSPACES):
        m[m[ix.WORKSPACE] + i] = max(m[m[ix.WORKSPACE] + i], t[row, c.WORK + i])
    for i in range(c.N_WORDS):
        m[m[ix.GROUPS] + i] |= t[row, c.GROUPS + i]
    return moved


@compiled
def copy_of(o: Any, t: Any, m: Any, row: int, site: int, overlaps: int) -> int:
    """Reshard the value at a site forward; a copy that no collective makes is made once."""
    source = m[m[ix.MADE] + site]
    if t[row, c.COMMUNICATES]:
        return move(o, t, m, row, source, -1, overlaps)
    first = m[ix.COPIES_OF] + (o[ix.FIRST_OPERATOR] + source if source >= 0 else site)
    number = m[first]
    while number >= 0:
        at = m[ix.COPIES] + 3 * number
        if m[at] == t[row, c.PATH]:
            return m[at + 1]
        number = m[at + 2]
    moved, at = move(o, t, m, row, source, -1, overlaps), m[ix.COPIES] + 3 * m[ix.N_COPIES]
    m[at], m[at + 1], m[at + 2] = t[row, c.PATH], moved, m[first]
    m[first] = m[ix.N_COPIES]
    m[ix.N_COPIES] += 1
    return moved


@compiled
def move_back(o: Any, t: Any, m: Any, row: int, source: int, is_overlappable: int, overlaps: int) -> int:
    """Bring a gradient back through a resharding; return the buffer after it."""
    if t[row, c.BACK_IS_VIEW]:
        return source
    communicates = t[row, c.BACK_COMMUNICATES]
    moved = new_buffer(o, m, t[row, c.BACK_BYTES], communicates)
    read(m, source)
    write(m, moved)
    delay = (FOR_UPDATES if is_overlappable else MAY_WAIT) if communicates else 0
    add(m, t[row, c.BACK_SCRATCH], communicates, delay, overlaps)
    # Collectives that overlap with compute have a workspace of their own.
    first = m[ix.WORKSPACE] + (N_WORKSPACES if is_overlappable and overlaps else 0)
    for i in range(N_WORKSPACES):
        m[first + i] = max(m[first + i], t[row, c.BACK_WORK + i])
    for i in range(c.N_WORDS):
        m[m[ix.GROUPS] + i] |= t[row, c.BACK_GROUPS + i]
    return moved
