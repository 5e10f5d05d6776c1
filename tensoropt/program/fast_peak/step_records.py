"""Write a step as records: its passes, micro-batch by micro-batch, and where each variable is updated (:mod:`..step`).

What a step does once comes first, then the passes of each micro-batch, then the way back of the gradients that these have
summed. A batch that is taken as a whole is one micro-batch, which runs all operators. The names of the arguments are those
of :mod:`.records`.
"""

from __future__ import annotations

from typing import Any

from .array_layout import (
    AGAIN,
    ARRIVED,
    BUCKETS,
    DENSE,
    FIRST_OPERATOR,
    FIRST_RUN,
    FOUND,
    IN_PASSES,
    LAST_READ,
    LOOKED_UP,
    LOOKUPS,
    N_BUCKETED,
    N_BUCKETS,
    N_BY_ROWS,
    N_DENSE,
    N_GRADIENTS,
    N_MICRO_BATCHES,
    N_OPERANDS,
    N_OPERATORS,
    N_RECORDS,
    N_TENSORS,
    NEXT_UPDATED,
    OF_OPERAND,
    OF_OPERATOR,
    OPERANDS,
    OUTPUTS,
    ROOT,
    TOTAL,
    UPDATED,
    VARIABLE,
    VIEWED,
    WRITER,
)
from .columns import ACCUMULATES, IS_RECEIVED, IS_TAKEN, PASSES, SOURCE, WRITES
from .compilation import compiled
from .divided import end_backward, send_back
from .records import arrive_through, reshard, return_through, send, through
from .written import BEGIN, BEGIN_PASS, COMPUTE, MICRO_BATCH, RECEIVE, TAKE, WRITE, append_record, made_by


@compiled
def _forward(o: Any, t: Any, r: Any, m: Any, first: int, end: int, index: int) -> None:
    """Write the forward pass of operators from ``first`` to ``end``, exclusive, in a micro-batch."""
    root = m[ROOT]
    for operator in range(first, end):
        flags = o[o[OF_OPERATOR] + operator]
        if flags & (IS_TAKEN | IS_RECEIVED):
            append_record(m, RECEIVE if flags & IS_RECEIVED else TAKE, o[o[OUTPUTS] + operator], 0, 0, 0, 0)
        if not flags & SOURCE:
            for operand in range(o[o[OPERANDS] + operator], o[o[OPERANDS] + operator + 1]):
                if index == 0 or not o[o[OF_OPERAND] + operand] & ACCUMULATES:
                    reshard(o, t, r, m, operand)
            append_record(m, WRITE if flags & WRITES else COMPUTE, operator, 0, 0, 0, 0)
        for tensor in range(o[o[OUTPUTS] + operator], o[o[OUTPUTS] + operator + 1]):
            viewed = o[o[VIEWED] + tensor]
            m[root + tensor] = tensor
            if flags & WRITES:
                m[root + tensor] = m[root + o[o[VARIABLE] + operator]]
            elif viewed >= 0:
                m[root + tensor] = m[root + 2 * o[N_TENSORS] + viewed]


@compiled
def _begin(o: Any, m: Any) -> None:
    """Let nothing have been made again, and no gradient have arrived."""
    for i in range(o[FIRST_OPERATOR]):
        m[m[AGAIN] + i] = -1
        m[m[ARRIVED] + i] = -1
    for i in range(o[N_TENSORS]):
        m[m[LAST_READ] + i] = -1


@compiled
def _send_all(o: Any, t: Any, r: Any, m: Any) -> None:
    """Write the sums of all gradients that wait in buckets, in the order in which these were opened."""
    buckets = m[BUCKETS]
    while m[N_BUCKETED]:
        earliest = -1
        for key in range(m[N_BUCKETS]):
            if m[buckets + 3 * key] and (earliest < 0 or m[buckets + 3 * key + 2] < m[buckets + 3 * earliest + 2]):
                earliest = key
        send(o, t, r, m, earliest)


@compiled
def _back_from_loss(o: Any, t: Any, r: Any, m: Any, index: int, seed: int) -> int:
    """Write the backward pass of a micro-batch from the loss, which is the last operand; return its first gradient.

    All micro-batches begin with the gradient of the first one, ``seed``.
    """
    loss = o[N_OPERANDS] - 1
    reshard(o, t, r, m, loss)
    if o[IN_PASSES]:
        append_record(m, BEGIN_PASS, 0, 0, 0, 0, 0)
    start, first_gradient = m[N_RECORDS], m[N_GRADIENTS]
    number = append_record(m, BEGIN, 2 * m[m[ROOT] + 2 * o[N_TENSORS] + loss], m[N_GRADIENTS], seed, 0, 0)
    begun = made_by(m, number)
    arrive_through(o, t, r, m, loss, begun)
    return_through(o, t, r, m, loss)
    for operator in range(o[N_OPERATORS] - 1, o[FIRST_RUN] - 1, -1):
        if o[o[OF_OPERATOR] + operator] & PASSES:
            through(o, t, r, m, operator, index)
        for operand in range(o[o[OPERANDS] + operator + 1] - 1, o[o[OPERANDS] + operator] - 1, -1):
            if not o[o[OF_OPERAND] + operand] & ACCUMULATES:
                return_through(o, t, r, m, operand)
    _send_all(o, t, r, m)
    for i in range(o[o[LOOKUPS] + o[N_BY_ROWS]]):
        m[m[FOUND] + o[N_MICRO_BATCHES] * i + index] = m[m[ARRIVED] + o[o[LOOKED_UP] + i]]
    end_backward(o, m, start, index, first_gradient)
    return begun


@compiled
def _back_once(o: Any, t: Any, r: Any, m: Any) -> None:
    """Write the way back of the gradients that micro-batches have summed at what was resharded once for all of them."""
    for operand in range(o[o[OPERANDS] + o[FIRST_RUN]], o[N_OPERANDS] - 1):
        if o[o[OF_OPERAND] + operand] & ACCUMULATES and m[m[TOTAL] + operand] >= 0:
            arrive_through(o, t, r, m, operand, m[m[TOTAL] + operand])
    for operand in range(o[N_OPERANDS] - 2, o[o[OPERANDS] + o[FIRST_RUN]] - 1, -1):
        if o[o[OF_OPERAND] + operand] & ACCUMULATES:
            return_through(o, t, r, m, operand)
    for operator in range(o[FIRST_RUN] - 1, -1, -1):
        if o[o[OF_OPERATOR] + operator] & PASSES:
            through(o, t, r, m, operator, -1)
        for operand in range(o[o[OPERANDS] + operator + 1] - 1, o[o[OPERANDS] + operator] - 1, -1):
            return_through(o, t, r, m, operand)
    _send_all(o, t, r, m)
    send_back(o, m)


@compiled
def write_records(o: Any, t: Any, r: Any, m: Any) -> None:
    """Write a step: its records, and the record behind which each variable is updated."""
    for i in range(3 * m[N_BUCKETS]):
        m[m[BUCKETS] + i] = 0
    for i in range(o[N_OPERANDS]):
        m[m[TOTAL] + i] = -1
    _forward(o, t, r, m, 0, o[FIRST_RUN], 0)
    begun, start = -1, 0
    for index in range(o[N_MICRO_BATCHES]):
        _begin(o, m)
        if o[IN_PASSES]:
            append_record(m, BEGIN_PASS, 0, 0, 0, 0, 0)
        append_record(m, MICRO_BATCH, index, 0, 0, 0, 0)
        _forward(o, t, r, m, o[FIRST_RUN], o[N_OPERATORS], index)
        begins = _back_from_loss(o, t, r, m, index, begun)
        begun = begins if index == 0 else begun
    if o[IN_PASSES]:
        append_record(m, BEGIN_PASS, 1, 0, 0, 0, 0)
    if o[FIRST_RUN]:
        _begin(o, m)
        start = append_record(m, MICRO_BATCH, -1, 0, 0, 0, 0)
        _back_once(o, t, r, m)
    for i in range(m[N_RECORDS]):
        m[m[UPDATED] + i] = -1
    for i in range(o[N_DENSE] - 1, -1, -1):
        tensor = o[o[DENSE] + i]
        gradient = m[m[ARRIVED] + tensor]
        if gradient >= 0:
            behind = max(m[m[LAST_READ] + tensor], m[m[WRITER] + gradient])
            behind = behind if behind >= start else m[N_RECORDS] - 1
            m[m[NEXT_UPDATED] + i] = m[m[UPDATED] + behind]
            m[m[UPDATED] + behind] = i
