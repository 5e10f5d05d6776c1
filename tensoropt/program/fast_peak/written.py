"""Name the kinds of records, and append records and their values.

The names of the arguments are those of :mod:`.records`.
"""

from __future__ import annotations

from typing import Any

from ...common.compiled import inner as compiled
from . import array_layout as ix
from . import columns as c

RESHARD, COMPUTE, WRITE, BEGIN, RESHARD_AGAIN, COMPUTE_AGAIN, GRADIENT, SUM, RETURN, TAKE, MICRO_BATCH = range(11)
ACCUMULATE, RECEIVE, SEND, BEGIN_PASS = range(11, 15)
"""The kinds of records, each with what follows:

    RESHARD         site, value
    COMPUTE, WRITE  operator
    BEGIN           value of the loss, gradient made, that of the first micro-batch
    RESHARD_AGAIN   site, value, gradient that it waits for, first of all such gradients, their number
    COMPUTE_AGAIN   operator, first of its values, 0, first of the gradients that it waits for, their number
    GRADIENT        operator, first of its values, number of gradients, number of values, first gradient made
    SUM             gradient, gradient, gradient made
    RETURN          site, gradient, gradient made
    TAKE            tensor of a batch
    MICRO_BATCH     index of the one that begins; -1 where what is done once goes on
    ACCUMULATE      as SUM, over micro-batches
    RECEIVE         tensor of another stage
    SEND            gradient
    BEGIN_PASS      whether it is behind the last pass

Where a backward pass is divided, the last number says which gradients a GRADIENT makes: 0 all, 1 those that are needed for
what is sent back, 2 the others.

The values of a gradient are (tensor, gradient) of each gradient that it takes, then (site, value) of each value.
"""


@compiled
def append_record(m: Any, kind: int, v: int, w: int, x: int, y: int, z: int) -> int:
    """Append a record; return its number."""
    number = m[ix.N_RECORDS]
    at = m[ix.RECORDS] + c.WIDTH * number
    m[at], m[at + 1], m[at + 2], m[at + 3], m[at + 4], m[at + 5], m[at + 6] = kind, v, w, x, y, z, 0
    m[ix.N_RECORDS] += 1
    return number


@compiled
def made_by(m: Any, record: int) -> int:
    """Return a new gradient, which the record makes."""
    gradient = m[ix.N_GRADIENTS]
    m[m[ix.WRITER] + gradient] = record
    m[ix.N_GRADIENTS] += 1
    return gradient


@compiled
def add_value(m: Any, site: int, value: int) -> None:
    """Append a value of the next record, or of the last one."""
    at = m[ix.VALUES] + 2 * m[ix.N_VALUES]
    m[at], m[at + 1] = site, value
    m[ix.N_VALUES] += 1


@compiled
def note_read(o: Any, m: Any, value: int) -> None:
    """Note that the last record reads the memory of a tensor's first value, which may be a variable's."""
    site = value >> 1
    if not value & 1 and site < o[ix.N_TENSORS]:
        m[m[ix.LAST_READ] + site] = m[ix.N_RECORDS] - 1


@compiled
def push(m: Any, depth: int, site: int) -> int:
    """Push a site onto the stack, at its first stage; return the new depth."""
    at = m[ix.STACK] + 2 * depth
    m[at], m[at + 1] = site, 0
    return depth + 1


@compiled
def is_wanted(o: Any, operand: int, index: int) -> int:
    """Return whether a micro-batch has a gradient of an operand; an index of -1 is that of what is done once."""
    flags = o[o[ix.OF_OPERAND] + operand]
    return (flags & c.WANTED) != 0 and (index <= 0 or not flags & c.ONLY_ONCE)


@compiled
def arrive(m: Any, site: int, gradient: int) -> None:
    """Add a gradient to the one that has arrived at a site before, if there is one."""
    at = m[ix.ARRIVED] + site
    if m[at] >= 0:
        number = append_record(m, SUM, m[at], gradient, m[ix.N_GRADIENTS], 0, 0)
        gradient = made_by(m, number)
    m[at] = gradient
