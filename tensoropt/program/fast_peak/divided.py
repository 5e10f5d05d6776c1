"""Divide the records of a backward pass: what is sent back needs some first, the others wait (:mod:`..deferral`).

The names of the arguments are those of :mod:`.records`.
"""

from __future__ import annotations

from typing import Any

from ...common.compiled import inner as compiled
from . import array_layout as ix
from . import columns as c
from . import written as w
from .columns import WIDTH
from .written import append_record, is_wanted

DEFERRED, URGENT, BOTH = range(3)


@compiled
def _need_values(m: Any, first: int, n: int, are_gradients: int) -> None:
    """Note that gradients, or values, are needed."""
    for i in range(first, first + n):
        value = m[m[ix.VALUES] + 2 * i + 1]
        if are_gradients:
            m[m[ix.NEEDED] + value] = 1
        elif value & 1:
            m[m[ix.NEEDED_AGAIN] + (value >> 1)] = 1


@compiled
def _part_of_gradients(o: Any, m: Any, record: int, index: int) -> int:
    """Return the part of a record that makes the gradients of an operator's operands."""
    operator, n_needed, n = m[record + 1], 0, 0
    for operand in range(o[o[ix.OPERANDS] + operator], o[o[ix.OPERANDS] + operator + 1]):
        if is_wanted(o, operand, index):
            n_needed += m[m[ix.NEEDED] + m[record + 5] + n]
            n += 1
    if n_needed == 0:
        return DEFERRED
    return BOTH if n_needed < n and o[o[ix.OF_OPERATOR] + operator] & c.IS_SEPARATE else URGENT


@compiled
def _need(o: Any, m: Any, number: int, index: int) -> int:
    """Note what a record needs if what is sent back needs it; return its part."""
    record = m[ix.RECORDS] + WIDTH * number
    kind, x, y, z, needed = m[record], m[record + 1], m[record + 2], m[record + 3], m[ix.NEEDED]
    part = DEFERRED
    if kind == w.BEGIN:
        part = m[needed + y]
    elif kind == w.SUM:
        part = m[needed + z]
        if part:
            m[needed + x] = 1
            m[needed + y] = 1
    elif kind == w.RETURN:
        part = m[needed + z]
        if part:
            m[needed + y] = 1
    elif kind == w.GRADIENT:
        part = _part_of_gradients(o, m, record, index)
        if part:
            _need_values(m, y, z, 1)
            _need_values(m, y + z, m[record + 4], 0)
    elif kind == w.RESHARD_AGAIN:
        part = m[m[ix.NEEDED_AGAIN] + x]
        if part:
            if y & 1:
                m[m[ix.NEEDED_AGAIN] + (y >> 1)] = 1
            _need_values(m, m[record + 4], m[record + 5], 1)
    elif kind == w.COMPUTE_AGAIN:
        for tensor in range(o[o[ix.OUTPUTS] + x], o[o[ix.OUTPUTS] + x + 1]):
            part |= m[m[ix.NEEDED_AGAIN] + tensor]
        if part:
            _need_values(m, y, o[o[ix.OPERANDS] + x + 1] - o[o[ix.OPERANDS] + x], 0)
            _need_values(m, m[record + 4], m[record + 5], 1)
    return part


@compiled
def _append_part(m: Any, start: int, end: int, kind: int, n: int) -> int:
    """Append the records of a part to those in the new order, of which there are n; return how many there are then."""
    part = DEFERRED
    for number in range(start, end):
        record = m[ix.RECORDS] + WIDTH * number
        if m[record] == w.ACCUMULATE:  # it comes right after the gradient that it adds
            is_in_part = part == kind if part != BOTH else (m[m[ix.NEEDED] + m[record + 2]] != 0) == (kind == URGENT)
        else:
            part = m[m[ix.PART] + number]
            is_in_part = part in (kind, BOTH)
        if is_in_part:
            at = m[ix.DIVIDED] + WIDTH * n
            for i in range(WIDTH):
                m[at + i] = m[record + i]
            if m[record] == w.GRADIENT and part == BOTH:
                m[at + 6] = 1 if kind == URGENT else 2
            m[m[ix.PLACE] + number] = n
            n += 1
    return n


@compiled
def _find_parts(o: Any, m: Any, start: int, index: int, first_gradient: int) -> None:
    for i in range(first_gradient, m[ix.N_GRADIENTS]):
        m[m[ix.NEEDED] + i] = 0
    for site in range(o[ix.FIRST_OPERATOR]):
        m[m[ix.NEEDED_AGAIN] + site] = 0
    for i in range(o[ix.N_RETURNED]):
        gradient = m[m[ix.ARRIVED] + o[o[ix.RETURNED] + i]]
        if gradient >= 0:
            m[m[ix.NEEDED] + gradient] = 1
    for number in range(m[ix.N_RECORDS] - 1, start - 1, -1):
        m[m[ix.PART] + number] = _need(o, m, number, index)


@compiled
def _put(m: Any, first: int, n: int) -> None:
    """Append n of the records in their new order, from the first one on."""
    for i in range(WIDTH * n):
        m[m[ix.RECORDS] + WIDTH * m[ix.N_RECORDS] + i] = m[m[ix.DIVIDED] + WIDTH * first + i]
    m[ix.N_RECORDS] += n


@compiled
def _new_place(m: Any, record: int, start: int, n_urgent: int, n_added: int) -> int:
    """Return the number of a record, or of its deferred part, after it was put in its new place."""
    place = m[m[ix.PLACE] + record]
    return start + place + (n_added if place >= n_urgent else 0)


@compiled
def send_back(o: Any, m: Any) -> None:
    """Write the sending of gradients that have arrived at what other stages compute."""
    for i in range(o[ix.N_RETURNED]):
        at = m[ix.ARRIVED] + o[o[ix.RETURNED] + i]
        if m[at] >= 0:
            append_record(m, w.SEND, m[at], 0, 0, 0, 0)
            m[at] = -1


@compiled
def end_backward(o: Any, m: Any, start: int, index: int, first_gradient: int) -> None:
    """Write the sending of gradients behind a backward pass that begins at a record, or behind what they need of it."""
    if not o[ix.DIVIDES]:
        send_back(o, m)
        if o[ix.IN_PASSES]:
            append_record(m, w.BEGIN_PASS, 0, 0, 0, 0, 0)
        return
    end = m[ix.N_RECORDS]
    _find_parts(o, m, start, index, first_gradient)
    n_urgent = _append_part(m, start, end, URGENT, 0)
    n = _append_part(m, start, end, DEFERRED, n_urgent)
    m[ix.N_RECORDS] = start
    _put(m, 0, n_urgent)
    send_back(o, m)
    if o[ix.IN_PASSES]:
        append_record(m, w.BEGIN_PASS, 0, 0, 0, 0, 0)
    n_added = m[ix.N_RECORDS] - start - n_urgent
    _put(m, n_urgent, n - n_urgent)
    for i in range(o[ix.N_TENSORS]):
        last = m[m[ix.LAST_READ] + i]
        if last >= start:
            m[m[ix.LAST_READ] + i] = _new_place(m, last, start, n_urgent, n_added)
    for i in range(first_gradient, m[ix.N_GRADIENTS]):
        m[m[ix.WRITER] + i] = _new_place(m, m[m[ix.WRITER] + i], start, n_urgent, n_added)
