"""Lay out the arrays that the kernels read and write in two arrays of integers, an outline and an arena.

A kernel gets few arguments: many arrays, each with its own length and reference count, would take Numba minutes to compile
and a call longer than what it does. An outline and an arena begin with the numbers below; those of arrays are where each of
them begins. Rows of arrays with several columns lie one after the other.
"""

from __future__ import annotations

# An outline: what it counts,
N_OPERATORS, N_TENSORS, N_OPERANDS, N_DENSE, N_BY_ROWS, N_SOURCES, FIRST_OPERATOR, FIRST_LOOKUP, LOSS_BYTES, WAITS = range(10)
"""The operands count the loss, which is the last; places of the first operator and of the first lookup; the loss's bytes of an
element; whether updates wait for a sum over all gradients."""
# and its arrays.
(OF_OPERATOR, OPERANDS, OF_OPERAND, TENSOR, OUTPUTS, PRODUCER, VIEWED, IS_RESIDUAL, DENSE, VARIABLE, LOOKUPS, LOOKED_UP, CHANGES,
 IS_OVERLAPPABLE, SOURCES) = range(10, 25)
"""Flags of operators; where an operator's operands begin; flags of operands; their tensors; where an operator's results, which
are tensors in order, begin; by tensor its operator, the operand that it views or -1, and whether its gradient reads it; the
variables with dense gradients; the variable that an operator writes to; where the lookups in a variable begin that is updated
by rows; what they found; the variable if all of it changes, else -1; whether only updates wait for a tensor's gradient."""
N_OUTLINE = 25

# An arena: what it counts,
(N_RECORDS, N_VALUES, N_GRADIENTS, N_BUCKETED, N_OPENED, N_READS, N_WRITES, N_OVER, N_INSTRUCTIONS, N_RUN, N_DELAYED, DUE, N_BUFFERS,
 EPOCH, N_COPIES, N_HELD, N_WAITING, HAS_REMATERIALIZED, N_BUCKETS) = range(19)
# and its arrays: those of records,
(RECORDS, VALUES, ROOT, AGAIN, ARRIVED, LAST_READ, WRITER, STACK, BUCKETED, BUCKETS, UPDATED, NEXT_UPDATED) = range(19, 31)
"""Six numbers a record; two a value; by place its memory's place, its value in the backward pass, the gradient that has arrived;
by tensor the record that reads it last; by gradient the record that makes it; a stack; place, gradient and bucket of what waits
in buckets; of each bucket the number of gradients, their bytes, and when it was opened; by record the first variable that is
updated behind it; by variable the next one there."""
# and those of memory.
(READS, WRITES_OF, OVER, ENDS, RUN, DELAYED, COPIES, BYTES, IS_PYTHON_S, PENDING, LAST, WORKSPACE, HELD, WAITING, MADE, MADE_AGAIN,
 OF_GRADIENT, WINDOWS, INSIDE_OF, SIZES, IS_WRITTEN, IS_GONE) = range(31, 53)
"""What instructions read and write; what they may write over and the bytes that they read of it; where their parts end, with
scratch bytes and whether they call Python; those that run, those that are delayed; copies: source, path, copy; buffers: bytes,
whether Python's, since when what writes them is delayed, when they are used last; workspaces of collectives; what the last
parameters' gradients read; what waits for the end; buffers of places, of those made again, of gradients, of windows, of what is
saved inside; and what the last pass over all instructions knows of buffers."""
N_ARENA = 53
ENDS_COLUMNS = 5
