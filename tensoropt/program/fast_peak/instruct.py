"""Turn the records of a step into instructions on buffers, as :mod:`..memory.buffers` and :mod:`..memory.instructions` do.

A *buffer* is a number, in the order in which buffers are made. Sources have none (-1): they are alive all the time. An
instruction is a number, too; what it reads, writes and may write over are runs of three arrays.

In all kernels ``o`` is the outline and ``m`` the arena (:mod:`.array_layout`), ``t`` the table of rows
and ``r`` a site's row; ``overlaps`` says whether communication overlaps with compute.
"""

from __future__ import annotations

from typing import Any

from ...common.compiled import inner as compiled
from . import array_layout as ix
from . import columns as c
from . import written as w
from .columns import WIDTH
from .running import N_WORKSPACES, add, catch_up, copy_of, may_overwrite, move, move_back, new_buffer, read, write
from .updates import begin_micro_batch, begin_pass, update, update_rows
from .written import is_wanted


@compiled
def _operand(o: Any, t: Any, r: Any, m: Any, operator: int, operand: int) -> int:
    """Return the buffer that an operator of the forward pass reads for an operand."""
    if operand == o[o[ix.OPERANDS] + operator] and t[r[o[ix.FIRST_OPERATOR] + operator], c.EXCHANGES]:
        return m[m[ix.WINDOWS] + operator]
    return m[m[ix.MADE] + m[m[ix.ROOT] + 2 * o[ix.N_TENSORS] + operand]]


@compiled
def _compute(o: Any, t: Any, r: Any, m: Any, operator: int, overlaps: int) -> None:
    """Add an operator of the forward pass."""
    first, row = 2 * o[ix.N_TENSORS], r[o[ix.FIRST_OPERATOR] + operator]
    first_operand, end_operand = o[o[ix.OPERANDS] + operator], o[o[ix.OPERANDS] + operator + 1]
    first_tensor, end_tensor = o[o[ix.OUTPUTS] + operator], o[o[ix.OUTPUTS] + operator + 1]
    if t[row, c.EXCHANGES]:
        m[m[ix.WINDOWS] + operator] = copy_of(o, t, m, row, m[m[ix.ROOT] + first + first_operand], overlaps)
    n_made = int(t[row, c.INSIDE] >= 0)
    for tensor in range(first_tensor, end_tensor):
        n_made += o[o[ix.VIEWED] + tensor] < 0
    if n_made == 0:
        return
    statistic = -1
    if t[row, c.SPLITS_INNER]:
        statistic = new_buffer(o, m, 0, 0)
        for operand in range(first_operand, end_operand):
            read(m, _operand(o, t, r, m, operator, operand))
        write(m, statistic)
        add(m, 0, 1, 0, overlaps)
    for operand in range(first_operand, end_operand):
        buffer = _operand(o, t, r, m, operator, operand)
        read(m, buffer)
        if o[o[ix.OF_OPERATOR] + operator] & c.OVERWRITES:
            may_overwrite(m, buffer, t[r[first + operand], c.OPERAND_BYTES])
    read(m, statistic)
    for tensor in range(first_tensor, end_tensor):
        if o[o[ix.VIEWED] + tensor] < 0:
            m[m[ix.MADE] + tensor] = new_buffer(o, m, t[r[tensor], c.N_BYTES], 0)
            write(m, m[m[ix.MADE] + tensor])
    if t[row, c.INSIDE] >= 0:
        m[m[ix.INSIDE_OF] + operator] = new_buffer(o, m, t[row, c.INSIDE], 0)
        write(m, m[m[ix.INSIDE_OF] + operator])
    add(m, t[row, c.OPERATOR_SCRATCH], 0, 0, overlaps)


@compiled
def _of_value(m: Any, value: int) -> int:
    return m[m[ix.MADE_AGAIN if value & 1 else ix.MADE] + (value >> 1)]


@compiled
def _compute_again(o: Any, t: Any, r: Any, m: Any, operator: int, first_value: int, overlaps: int) -> None:
    """Add an operator that is rematerialized; its values begin with the first one."""
    first_operand, values, n_made = o[o[ix.OPERANDS] + operator], m[ix.VALUES] + 2 * first_value, 0
    for tensor in range(o[o[ix.OUTPUTS] + operator], o[o[ix.OUTPUTS] + operator + 1]):
        viewed = o[o[ix.VIEWED] + tensor]
        if viewed >= 0:
            m[m[ix.MADE_AGAIN] + tensor] = _of_value(m, m[values + 2 * (viewed - first_operand) + 1])
        else:
            m[m[ix.MADE_AGAIN] + tensor] = new_buffer(o, m, t[r[tensor], c.N_BYTES], 0)
            write(m, m[m[ix.MADE_AGAIN] + tensor])
            n_made += 1
    m[ix.HAS_REMATERIALIZED] = 1
    if n_made == 0:
        return
    for operand in range(first_operand, o[o[ix.OPERANDS] + operator + 1]):
        buffer = _of_value(m, m[values + 2 * (operand - first_operand) + 1])
        read(m, buffer)
        if o[o[ix.OF_OPERATOR] + operator] & c.OVERWRITES:
            may_overwrite(m, buffer, t[r[2 * o[ix.N_TENSORS] + operand], c.OPERAND_BYTES])
    add(m, t[r[o[ix.FIRST_OPERATOR] + operator], c.OPERATOR_SCRATCH], 0, 0, overlaps)


@compiled
def _known(o: Any, m: Any, record: int, i: int) -> int:
    """Return the buffer of what an operator's gradient has: first the gradients, then the values."""
    at = m[ix.VALUES] + 2 * (m[record + 2] + i)
    if i < m[record + 3]:
        return m[m[ix.OF_GRADIENT] + m[at + 1]]
    windows, operand = m[m[ix.WINDOWS] + m[record + 1]], m[at] - 2 * o[ix.N_TENSORS]
    if windows >= 0 and operand >= 0 and o[o[ix.OF_OPERAND] + operand] & c.IS_FIRST:
        return windows
    return _of_value(m, m[at + 1])


@compiled
def _size(o: Any, t: Any, r: Any, m: Any, record: int, i: int) -> int:
    """Return the bytes of what :func:`_known` returns that the gradient reads."""
    site = m[m[ix.VALUES] + 2 * (m[record + 2] + i)]
    return t[r[site], c.N_BYTES if site < 2 * o[ix.N_TENSORS] else c.OPERAND_BYTES]


@compiled
def _make_gradient(o: Any, t: Any, r: Any, m: Any, record: int, operand: int, overlaps: int) -> int:
    """Add the gradient of an operand; return its buffer."""
    operator, site, n = m[record + 1], 2 * o[ix.N_TENSORS] + operand, m[record + 3] + m[record + 4]
    flags, own, begin = o[o[ix.OF_OPERATOR] + operator], -2, m[ix.N_READS]
    if flags & c.IS_PRODUCT:
        # Computed from the other operand.
        for i in range(m[record + 3], n):
            if m[m[ix.VALUES] + 2 * (m[record + 2] + i)] == site:
                own = _known(o, m, record, i)
    for i in range(n):
        buffer = _known(o, m, record, i)
        if buffer != own:
            read(m, buffer)
        if flags & c.OVERWRITES:
            may_overwrite(m, buffer, _size(o, t, r, m, record, i))
    read(m, m[m[ix.INSIDE_OF] + operator])
    is_received = int(flags & c.AWAITS != 0)
    end, gradient = m[ix.N_READS], new_buffer(o, m, t[r[site], c.OPERAND_BYTES], is_received)
    write(m, gradient)
    add(m, t[r[site], c.GRADIENT_SCRATCH], is_received, 0, overlaps)
    if o[o[ix.OF_OPERAND] + operand] & c.OF_VARIABLES:
        for i in range(begin, end):
            m[m[ix.HELD] + m[ix.N_HELD]] = m[m[ix.READS] + i]
            m[ix.N_HELD] += 1
    return gradient


@compiled
def _compute_gradients(o: Any, t: Any, r: Any, m: Any, record: int, overlaps: int) -> None:
    """Add the gradients of an operator's operands."""
    operator, gradient = m[record + 1], m[record + 5]
    if t[r[o[ix.FIRST_OPERATOR] + operator], c.SPLITS_INNER] and not overlaps:
        catch_up(m)  # the gradients of its statistics are communicated
    if m[ix.HAS_REMATERIALIZED]:
        for i in range(m[ix.N_HELD]):
            read(m, m[m[ix.HELD] + i])
        add(m, 0, 0, 0, overlaps)
    m[ix.N_HELD] = 0
    m[ix.HAS_REMATERIALIZED] = 0
    n_bytes = _size(o, t, r, m, record, 0)
    for operand in range(o[o[ix.OPERANDS] + operator], o[o[ix.OPERANDS] + operator + 1]):
        flags = o[o[ix.OF_OPERAND] + operand]
        if is_wanted(o, operand, m[ix.INDEX]):
            if m[record + 6] and m[m[ix.NEEDED] + gradient] != (m[record + 6] == 1):
                pass  # the other part of the backward pass makes it
            elif flags & c.PASSED_ON and t[r[2 * o[ix.N_TENSORS] + operand], c.OPERAND_BYTES] == n_bytes:
                m[m[ix.OF_GRADIENT] + gradient] = _known(o, m, record, 0)
            else:
                m[m[ix.OF_GRADIENT] + gradient] = _make_gradient(o, t, r, m, record, operand, overlaps)
            gradient += 1


@compiled
def _sum(o: Any, m: Any, a: int, b: int, overlaps: int) -> int:
    """Add the sum of two gradients, over one of them if possible; return its buffer."""
    n_bytes = max(m[m[ix.BYTES] + a], m[m[ix.BYTES] + b])
    total = new_buffer(o, m, n_bytes, 0)
    read(m, a)
    read(m, b)
    write(m, total)
    may_overwrite(m, a, n_bytes)
    may_overwrite(m, b, n_bytes)
    add(m, 0, 0, 0, overlaps)
    return total


@compiled
def _run(o: Any, t: Any, r: Any, m: Any, number: int, overlaps: int) -> None:
    """Add the instructions of a record."""
    record, made, gradients, first = m[ix.RECORDS] + WIDTH * number, m[ix.MADE], m[ix.OF_GRADIENT], 2 * o[ix.N_TENSORS]
    kind, x, y, z = m[record], m[record + 1], m[record + 2], m[record + 3]
    if kind == w.RESHARD:
        m[made + x] = copy_of(o, t, m, r[x], y >> 1, overlaps)
    elif kind == w.COMPUTE:
        _compute(o, t, r, m, x, overlaps)
    elif kind == w.WRITE:
        for operand in range(o[o[ix.OPERANDS] + x], o[o[ix.OPERANDS] + x + 1]):
            read(m, m[made + m[m[ix.ROOT] + first + operand]])
        add(m, 0, 0, 0, overlaps)
    elif kind == w.BEGIN:
        read(m, _of_value(m, x))
        add(m, 0, 0, 0, overlaps)
        m[gradients + y] = m[gradients + z] if z >= 0 else new_buffer(o, m, o[ix.LOSS_BYTES], 0)
    elif kind == w.RESHARD_AGAIN:
        m[m[ix.MADE_AGAIN] + x] = move(o, t, m, r[x], _of_value(m, y), m[gradients + z], overlaps)
    elif kind == w.COMPUTE_AGAIN:
        _compute_again(o, t, r, m, x, y, overlaps)
    elif kind == w.GRADIENT:
        _compute_gradients(o, t, r, m, record, overlaps)
    elif kind in (w.SUM, w.ACCUMULATE):
        m[gradients + z] = _sum(o, m, m[gradients + x], m[gradients + y], overlaps)
    elif kind == w.MICRO_BATCH:
        begin_micro_batch(o, m, x, overlaps)
    elif kind in (w.TAKE, w.RECEIVE):
        m[made + x] = new_buffer(o, m, t[r[x], c.N_BYTES], kind == w.RECEIVE)
        write(m, m[made + x])
        add(m, 0, kind == w.RECEIVE, 0, overlaps)
    elif kind == w.SEND:
        read(m, m[gradients + x])
        add(m, 0, 0, 0, overlaps)
    elif kind == w.BEGIN_PASS:
        begin_pass(o, m, x, overlaps)
    elif kind == w.RETURN:
        tensor = o[o[ix.TENSOR] + x - first] if x >= first else x - o[ix.N_TENSORS]
        m[gradients + z] = move_back(o, t, m, r[x], m[gradients + y], o[o[ix.IS_OVERLAPPABLE] + tensor], overlaps)


@compiled
def write_instructions(o: Any, t: Any, r: Any, m: Any, overlaps: int) -> None:
    """Turn the records of a step into instructions."""
    m[ix.EPOCH] = 1
    for i in range(ix.ENDS_COLUMNS):
        m[m[ix.ENDS] + i] = 0
    for i in range(2 * N_WORKSPACES):
        m[m[ix.WORKSPACE] + i] = 0
    for i in range(c.N_WORDS):
        m[m[ix.GROUPS] + i] = 0
    for i in range(o[ix.FIRST_OPERATOR]):
        m[m[ix.MADE] + i] = -1
        m[m[ix.MADE_AGAIN] + i] = -1
        m[m[ix.COPIES_OF] + i] = -1
    for i in range(o[ix.N_OPERATORS]):
        m[m[ix.WINDOWS] + i] = -1
        m[m[ix.INSIDE_OF] + i] = -1
    for number in range(m[ix.N_RECORDS]):
        _run(o, t, r, m, number, overlaps)
        variable = m[m[ix.UPDATED] + number]
        while variable >= 0:
            update(o, m, m[m[ix.OF_GRADIENT] + m[m[ix.ARRIVED] + o[o[ix.DENSE] + variable]]], overlaps)
            variable = m[m[ix.NEXT_UPDATED] + variable]
    update_rows(o, t, r, m, overlaps)
    catch_up(m)
    for i in range(m[ix.N_WAITING]):
        read(m, m[m[ix.WAITING] + i])
    add(m, 0, 0, 0, overlaps)
    catch_up(m)
