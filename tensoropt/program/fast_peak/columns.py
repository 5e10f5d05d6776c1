"""Name the columns of the tables that the compiled kernels read, and the flags of operators and operands.

A *site* is a number. Of a graph with T tensors, E operands (those of operators, then the losses), K operators and L lookups
in tables that are updated by rows, the sites are: the results (by tensor), the shared copies (by tensor), the operands, the
operators, and the lookups' rows.
"""

from __future__ import annotations

# Columns of the rows of reshardings: of operands, shared copies and lookups' rows.
HAS_STEPS, COMMUNICATES, IS_VIEW, N_BYTES, SCRATCH, PATH = range(6)
"""Forward: whether there is anything to do, by a collective, or only to view; bytes of the result, and beside it; the path's
number."""
IS_FREE, HAS_BACK, BACK_COMMUNICATES, BACK_IS_VIEW, BACK_BYTES, BACK_SCRATCH = range(6, 12)
"""Flags: both ways have no steps; and the same of the way back."""
BUCKET, GRADIENT_BYTES = 12, 13
"""The bucket that a small gradient is summed in, or -1; and the gradient's bytes."""
EXISTS, COPY, OF_SHARED, IS_ASKED = 14, 15, 16, 29
"""There is such a shared copy; of an operand's copy its :class:`...sharding.strategy.Residual`."""
OPERAND_BYTES, GRADIENT_SCRATCH = 17, 18
"""The bytes that an operator reads of its operand; the workspace of the operand's gradient."""
WORK, BACK_WORK = 19, 22
"""The first of the columns of collectives' workspaces, one a name, and of those of the way back."""
WORKSPACES = ("send", "receive", "reduce")
GROUPS, BACK_GROUPS = 25, 27
"""The groups whose collectives NCCL runs, a bit each."""
N_COLUMNS, N_WORDS, WORD_BITS = 30, 2, 62

# Columns of the rows of results: N_BYTES, and of sources
LASTING, WHOLE = 4, 5
"""the bytes that are alive throughout beside those of the value: slots, and the samples of other micro-batches; and those of
the value on all devices together."""

# Columns of the rows of operators: those of the way forward are of the windows that it exchanges, and
EXCHANGES, SPLITS_INNER, OPERATOR_SCRATCH, INSIDE, REMATERIALIZED = range(6, 11)
"""whether it exchanges windows, and communicates inside; its workspace; the bytes that it saves inside, or -1."""

# Flags of operators
SOURCE, WRITES, OVERWRITES, IS_PRODUCT, PASSES, IS_TAKEN, IS_RECEIVED, IS_SEPARATE, AWAITS = 1, 2, 4, 8, 16, 32, 64, 128, 256
"""It is a source; writes to a variable; may write over an operand; is a product; passes gradients on to its operands; is a
batch of which each micro-batch takes its part; is what another stage sends; computes each operand's gradient apart; its
gradient stands for what another stage sends."""
# Flags of operands
FIRST_USE, RESIDUAL, WANTED, PASSED_ON, OF_VARIABLES, IS_FIRST, ACCUMULATES, ONLY_ONCE = 1, 2, 4, 8, 16, 32, 64, 128
"""It is its tensor's first use; the gradient reads it; it has a gradient, perhaps that of the result; only updates wait for
it; it is at the operator's first position; it is resharded once, and its gradients are summed over micro-batches; only the
first micro-batch has a gradient of it."""
WIDTH = 7  # the numbers of a record, see .written
