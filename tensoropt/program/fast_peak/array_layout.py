"""Lay out the arrays that the kernels read and write in two arrays of integers, an outline and an arena.

A kernel gets few arguments: many arrays, each with its own length and reference count, would take Numba minutes to compile
and a call longer than what it does. An outline and an arena begin with the numbers below; those of arrays are where each of
them begins. Rows of arrays with several columns lie one after the other.
"""

from __future__ import annotations

# An outline: what it counts,
N_OPERATORS, N_TENSORS, N_OPERANDS, N_DENSE, N_BY_ROWS, N_SOURCES = range(6)
FIRST_OPERATOR, FIRST_LOOKUP, LOSS_BYTES, WAITS, N_MICRO_BATCHES, N_OTHERS, FIRST_RUN = range(6, 13)
N_RETURNED, IN_PASSES, DIVIDES = range(13, 16)
"""The operands count the loss, which is the last. Then the sites of the first operator and of the first lookup, the bytes
of an element of the loss, and whether updates wait for a sum over all gradients; how many micro-batches are written, and how
many others there are; the first operator that each micro-batch runs: all before it run once a step. Of a batch as a whole,
which is one micro-batch, it is 0. Of a stage how many gradients it sends back, whether its passes run in some order, and
whether backward passes run first what is sent back."""
# and its arrays.
OF_OPERATOR, OPERANDS, OF_OPERAND, TENSOR = range(16, 20)
"""Flags of operators, and where the operands of each begin; flags of operands, and the tensor of each."""
OUTPUTS, PRODUCER, VIEWED, IS_RESIDUAL = range(20, 24)
"""Where an operator's results begin, which are tensors in order; by tensor its operator, the operand that it views or -1,
and whether its gradient reads it."""
DENSE, VARIABLE, LOOKUPS, LOOKED_UP, CHANGES = range(24, 29)
"""The variables with dense gradients; the variable that an operator writes to; of each variable that is updated by rows
where its lookups begin, what these found, and twice the variable itself, plus one if all of it changes."""
IS_OVERLAPPABLE, SOURCES, RETURNED = range(29, 32)
"""For each tensor, whether only updates wait for its gradient; the results of operators without operands; the tensors whose
gradients a stage sends to the stage before."""

# An arena: what it counts,
N_RECORDS, N_VALUES, N_GRADIENTS, N_BUCKETED, N_OPENED = range(5)
N_READS, N_WRITES, N_OVER, N_INSTRUCTIONS, N_RUN, N_DELAYED, DUE = range(5, 12)
N_BUFFERS, EPOCH, N_COPIES, N_HELD, N_WAITING, HAS_REMATERIALIZED, INDEX, N_BUCKETS = range(12, 20)
N_PASSES, FIRST_AFTER, N_AFTER = range(20, 23)
"""``DUE`` says when the delayed instructions are due, ``EPOCH`` how often they were run, ``INDEX`` the micro-batch; what is
made again waits for ``N_AFTER`` gradients, of which the first one is the value ``FIRST_AFTER``."""
# the arrays of records,
RECORDS, VALUES, ROOT, AGAIN, ARRIVED, LAST_READ, WRITER, STACK = range(23, 31)
"""Seven numbers a record; two a value; by site its memory's site, its value in the backward pass, the gradient that has
arrived; by tensor the record that reads it last; by gradient the record that makes it; a stack."""
BUCKETED, BUCKETS, UPDATED, NEXT_UPDATED, TOTAL, FOUND = range(31, 37)
"""Site, gradient and bucket of what waits in buckets; of each bucket the number of gradients, their bytes, and when it was
opened; by record the first variable that is updated behind it; by variable the next one there; by operand the sum of its
gradients over micro-batches; by lookup and micro-batch the gradient of what it found."""
NEEDED, NEEDED_AGAIN, PART, PLACE, DIVIDED = range(37, 42)
"""For each gradient, and each operator that is computed again, whether a gradient that the stage sends to the stage before
needs it; for each record of a backward pass, its part and its new place; these records in their new order."""
# and those of memory.
READS, WRITES_OF, OVER, ENDS, RUN, DELAYED = range(42, 48)
"""The buffers that instructions read and write; those that they may write over, and the bytes that they read of these;
where their parts end, with scratch bytes and whether they call Python; those that run; those that are delayed."""
COPIES, BYTES, IS_PYTHON_S, PENDING, LAST, WORKSPACE = range(48, 54)
"""The path of each copy, the copy, and the next one of its source; of buffers the bytes, whether they are Python's, the
epoch in which what writes them is delayed, and the instruction that uses them last; workspaces of collectives."""
HELD, WAITING, MADE, MADE_AGAIN, OF_GRADIENT, WINDOWS, INSIDE_OF = range(54, 61)
"""Buffers: those that the last parameters' gradients read, held until other gradients are made; those that updates at the
end read; that of each site, of the rematerialized value there, of each gradient and window; what operators save inside."""
SIZES, IS_WRITTEN, IS_GONE, COPIES_OF, OTHERS = range(61, 66)
"""Buffers while they are counted: their bytes with those that they were written over, whether they are written, or gone.
Then the first copy of each source, by its place or, behind all sites, by its buffer; and by lookup the first buffer that
stands for what it found in micro-batches that aren't written."""
BEGINS, ALIVE, MOST = range(66, 69)
"""The instruction at which each pass begins, and the one behind the last pass; the bytes alive there; the most from there to
the next one, and before the first."""
GROUPS = 69
"""The groups whose collectives NCCL has run, a bit each."""
N_ARENA = 70
ENDS_COLUMNS = 5
