"""Turn into instructions what comes between passes and micro-batches, and the updates of variables.

The names of the arguments are those of :mod:`.instruct`.
"""

from __future__ import annotations

from typing import Any

from ...common.compiled import inner as compiled
from . import array_layout as ix
from . import columns as c
from .running import add, catch_up, end_instruction, move_back, new_buffer, read, write


@compiled
def update(o: Any, m: Any, gradient: int, overlaps: int) -> None:
    """Add the update of a variable, or let it wait for a sum over all gradients."""
    if o[ix.WAITS]:
        m[m[ix.WAITING] + m[ix.N_WAITING]] = gradient
        m[ix.N_WAITING] += 1
    else:
        read(m, gradient)
        add(m, 0, 0, 0, overlaps)


@compiled
def begin_micro_batch(o: Any, m: Any, index: int, overlaps: int) -> None:
    """Let a micro-batch wait for the sums of the one before; the last one also for what others, not written, found."""
    m[ix.INDEX] = index
    if index < 0:
        return
    catch_up(m)
    if o[ix.N_OTHERS] and index == o[ix.N_MICRO_BATCHES] - 2 and not o[ix.IN_PASSES]:
        _stand_for_others(o, m, index - 1, overlaps)


@compiled
def _stand_for_others(o: Any, m: Any, index: int, overlaps: int) -> None:
    """Let what lookups found in a micro-batch stand for that of others: their gradients wait for the update, too."""
    for i in range(o[o[ix.LOOKUPS] + o[ix.N_BY_ROWS]]):
        gradient = m[m[ix.FOUND] + o[ix.N_MICRO_BATCHES] * i + index]
        if gradient >= 0:
            m[m[ix.OTHERS] + i] = m[ix.N_BUFFERS]
            like = m[m[ix.OF_GRADIENT] + gradient]
            for _ in range(o[ix.N_OTHERS]):
                write(m, new_buffer(o, m, m[m[ix.BYTES] + like], m[m[ix.IS_PYTHON_S] + like]))
            add(m, 0, 0, 0, overlaps)


@compiled
def begin_pass(o: Any, m: Any, is_last: int, overlaps: int) -> None:
    """Let all that was written be over before a pass of a stage begins, and Python free what died; note where that is."""
    m[ix.N_HELD] = 0
    m[ix.HAS_REMATERIALIZED] = 0
    catch_up(m)
    for _ in range(2):
        m[m[ix.RUN] + m[ix.N_RUN]] = end_instruction(m, 0, 1)
        m[ix.N_RUN] += 1
    m[m[ix.BEGINS] + m[ix.N_PASSES]] = m[ix.N_RUN] - 1
    m[ix.N_PASSES] += 1
    if is_last and o[ix.N_OTHERS]:
        _stand_for_others(o, m, 0, overlaps)


@compiled
def _send_rows(o: Any, t: Any, r: Any, m: Any, lookup: int, overlaps: int) -> None:
    """Add the way of the gradients of what a lookup found to every device, in all micro-batches; updates wait for them."""
    for index in range(o[ix.N_MICRO_BATCHES]):
        gradient = m[m[ix.FOUND] + o[ix.N_MICRO_BATCHES] * lookup + index]
        if gradient >= 0:
            n_others = o[ix.N_OTHERS] if index == o[ix.N_MICRO_BATCHES] - 3 else 0
            for k in range(n_others + 1):
                source = m[m[ix.OTHERS] + lookup] + k - 1 if k else m[m[ix.OF_GRADIENT] + gradient]
                m[m[ix.WAITING] + m[ix.N_WAITING]] = move_back(o, t, m, r[o[ix.FIRST_LOOKUP] + lookup], source, 1, overlaps)
                m[ix.N_WAITING] += 1


@compiled
def _make_of_rows(o: Any, m: Any, n_bytes: int, overlaps: int) -> None:
    """Add what joins or cuts the rows that are to be read, and have the next instruction read what it makes of them."""
    rows = new_buffer(o, m, n_bytes, 0)
    write(m, rows)
    add(m, 0, 0, 0, overlaps)
    read(m, rows)


@compiled
def update_rows(o: Any, t: Any, r: Any, m: Any, overlaps: int) -> None:
    """Add the updates of variables by rows, which come after all others."""
    for variable in range(o[ix.N_BY_ROWS]):
        begin = m[ix.N_WAITING]
        for lookup in range(o[o[ix.LOOKUPS] + variable], o[o[ix.LOOKUPS] + variable + 1]):
            _send_rows(o, t, r, m, lookup, overlaps)
        total, row = 0, r[o[o[ix.CHANGES] + variable] >> 1]
        for i in range(begin, m[ix.N_WAITING]):
            total += m[m[ix.BYTES] + m[m[ix.WAITING] + i]]
            read(m, m[m[ix.WAITING] + i])
        if m[ix.N_WAITING] > begin + 1:
            _make_of_rows(o, m, total, overlaps)
        if t[row, c.N_BYTES] < t[row, c.WHOLE]:
            _make_of_rows(o, m, int(total * (t[row, c.N_BYTES] / t[row, c.WHOLE])), overlaps)
        if o[o[ix.CHANGES] + variable] & 1:
            write(m, new_buffer(o, m, t[row, c.N_BYTES], 0))
        add(m, 0, 0, 0, overlaps)
        if not o[ix.WAITS]:
            m[ix.N_WAITING] = begin
