"""Write a step as records: its passes, micro-batch by micro-batch, and where each variable is updated (:mod:`..step`).

What a step does once comes first, then the passes of each micro-batch, then the way back of the gradients that these have
summed. A batch that is taken as a whole is one micro-batch, which runs all operators. The names of the arguments are those
of :mod:`.records`.
"""

from __future__ import annotations

from typing import Any

from ...common.compiled import inner as compiled
from . import array_layout as ix
from . import columns as c
from . import written as w
from .divided import end_backward, send_back
from .records import arrive_through, reshard, return_through, send, through
from .written import append_record, made_by


@compiled
def _forward(o: Any, t: Any, r: Any, m: Any, first: int, end: int, index: int) -> None:
    """Write the forward pass of operators from ``first`` to ``end``, exclusive, in a micro-batch."""
    root = m[ix.ROOT]
    for operator in range(first, end):
        flags = o[o[ix.OF_OPERATOR] + operator]
        if flags & (c.IS_TAKEN | c.IS_RECEIVED):
            append_record(m, w.RECEIVE if flags & c.IS_RECEIVED else w.TAKE, o[o[ix.OUTPUTS] + operator], 0, 0, 0, 0)
        if not flags & c.SOURCE:
            for operand in range(o[o[ix.OPERANDS] + operator], o[o[ix.OPERANDS] + operator + 1]):
                if index == 0 or not o[o[ix.OF_OPERAND] + operand] & c.ACCUMULATES:
                    reshard(o, t, r, m, operand)
            append_record(m, w.WRITE if flags & c.WRITES else w.COMPUTE, operator, 0, 0, 0, 0)
        for tensor in range(o[o[ix.OUTPUTS] + operator], o[o[ix.OUTPUTS] + operator + 1]):
            viewed = o[o[ix.VIEWED] + tensor]
            m[root + tensor] = tensor
            if flags & c.WRITES:
                m[root + tensor] = m[root + o[o[ix.VARIABLE] + operator]]
            elif viewed >= 0:
                m[root + tensor] = m[root + 2 * o[ix.N_TENSORS] + viewed]


@compiled
def _begin(o: Any, m: Any) -> None:
    """Let nothing have been made again, and no gradient have arrived."""
    for i in range(o[ix.FIRST_OPERATOR]):
        m[m[ix.AGAIN] + i] = -1
        m[m[ix.ARRIVED] + i] = -1
    for i in range(o[ix.N_TENSORS]):
        m[m[ix.LAST_READ] + i] = -1


@compiled
def _send_all(o: Any, t: Any, r: Any, m: Any) -> None:
    """Write the sums of all gradients that wait in buckets, in the order in which these were opened."""
    buckets = m[ix.BUCKETS]
    while m[ix.N_BUCKETED]:
        earliest = -1
        for key in range(m[ix.N_BUCKETS]):
            if m[buckets + 3 * key] and (earliest < 0 or m[buckets + 3 * key + 2] < m[buckets + 3 * earliest + 2]):
                earliest = key
        send(o, t, r, m, earliest)


@compiled
def _back_from_loss(o: Any, t: Any, r: Any, m: Any, index: int, seed: int) -> int:
    """Write the backward pass of a micro-batch from the loss, which is the last operand; return its first gradient.

    All micro-batches begin with the gradient of the first one, ``seed``.
    """
    loss = o[ix.N_OPERANDS] - 1
    reshard(o, t, r, m, loss)
    if o[ix.IN_PASSES]:
        append_record(m, w.BEGIN_PASS, 0, 0, 0, 0, 0)
    start, first_gradient = m[ix.N_RECORDS], m[ix.N_GRADIENTS]
    number = append_record(m, w.BEGIN, 2 * m[m[ix.ROOT] + 2 * o[ix.N_TENSORS] + loss], m[ix.N_GRADIENTS], seed, 0, 0)
    begun = made_by(m, number)
    arrive_through(o, t, r, m, loss, begun)
    return_through(o, t, r, m, loss)
    for operator in range(o[ix.N_OPERATORS] - 1, o[ix.FIRST_RUN] - 1, -1):
        if o[o[ix.OF_OPERATOR] + operator] & c.PASSES:
            through(o, t, r, m, operator, index)
        for operand in range(o[o[ix.OPERANDS] + operator + 1] - 1, o[o[ix.OPERANDS] + operator] - 1, -1):
            if not o[o[ix.OF_OPERAND] + operand] & c.ACCUMULATES:
                return_through(o, t, r, m, operand)
    _send_all(o, t, r, m)
    for i in range(o[o[ix.LOOKUPS] + o[ix.N_BY_ROWS]]):
        m[m[ix.FOUND] + o[ix.N_MICRO_BATCHES] * i + index] = m[m[ix.ARRIVED] + o[o[ix.LOOKED_UP] + i]]
    end_backward(o, m, start, index, first_gradient)
    return begun


@compiled
def _back_once(o: Any, t: Any, r: Any, m: Any) -> None:
    """Write the way back of the gradients that micro-batches have summed at what was resharded once for all of them."""
    for operand in range(o[o[ix.OPERANDS] + o[ix.FIRST_RUN]], o[ix.N_OPERANDS] - 1):
        if o[o[ix.OF_OPERAND] + operand] & c.ACCUMULATES and m[m[ix.TOTAL] + operand] >= 0:
            arrive_through(o, t, r, m, operand, m[m[ix.TOTAL] + operand])
    for operand in range(o[ix.N_OPERANDS] - 2, o[o[ix.OPERANDS] + o[ix.FIRST_RUN]] - 1, -1):
        if o[o[ix.OF_OPERAND] + operand] & c.ACCUMULATES:
            return_through(o, t, r, m, operand)
    for operator in range(o[ix.FIRST_RUN] - 1, -1, -1):
        if o[o[ix.OF_OPERATOR] + operator] & c.PASSES:
            through(o, t, r, m, operator, -1)
        for operand in range(o[o[ix.OPERANDS] + operator + 1] - 1, o[o[ix.OPERANDS] + operator] - 1, -1):
            return_through(o, t, r, m, operand)
    _send_all(o, t, r, m)
    send_back(o, m)


@compiled
def write_records(o: Any, t: Any, r: Any, m: Any) -> None:
    """Write a step: its records, and the record behind which each variable is updated."""
    for i in range(3 * m[ix.N_BUCKETS]):
        m[m[ix.BUCKETS] + i] = 0
    for i in range(o[ix.N_OPERANDS]):
        m[m[ix.TOTAL] + i] = -1
    _forward(o, t, r, m, 0, o[ix.FIRST_RUN], 0)
    begun, start = -1, 0
    for index in range(o[ix.N_MICRO_BATCHES]):
        _begin(o, m)
        if o[ix.IN_PASSES]:
            append_record(m, w.BEGIN_PASS, 0, 0, 0, 0, 0)
        append_record(m, w.MICRO_BATCH, index, 0, 0, 0, 0)
        _forward(o, t, r, m, o[ix.FIRST_RUN], o[ix.N_OPERATORS], index)
        begins = _back_from_loss(o, t, r, m, index, begun)
        begun = begins if index == 0 else begun
    if o[ix.IN_PASSES]:
        append_record(m, w.BEGIN_PASS, 1, 0, 0, 0, 0)
    if o[ix.FIRST_RUN]:
        _begin(o, m)
        start = append_record(m, w.MICRO_BATCH, -1, 0, 0, 0, 0)
        _back_once(o, t, r, m)
    for i in range(m[ix.N_RECORDS]):
        m[m[ix.UPDATED] + i] = -1
    for i in range(o[ix.N_DENSE] - 1, -1, -1):
        tensor = o[o[ix.DENSE] + i]
        gradient = m[m[ix.ARRIVED] + tensor]
        if gradient >= 0:
            behind = max(m[m[ix.LAST_READ] + tensor], m[m[ix.WRITER] + gradient])
            behind = behind if behind >= start else m[ix.N_RECORDS] - 1
            m[m[ix.NEXT_UPDATED] + i] = m[m[ix.UPDATED] + behind]
            m[m[ix.UPDATED] + behind] = i
