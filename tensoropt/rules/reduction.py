"""Rules of reductions, softmax and the cross-entropies.

A sum over a split dimension is partial; a maximum over one needs collectives inside the operator, and so does a softmax.
"""

from __future__ import annotations

import numpy as np

from ..ir.graph import Operator
from .elementwise import FIRST
from .registry import op_rule
from .rule import Dims, Rule, make_rule, own_dims, pattern_rule


def reduced_dimensions(op: Operator) -> tuple[int, ...]:
    """Return the dimensions that a reduction reduces, as its static second input names them, in ascending order."""
    operand = op.operand(0)
    return tuple(sorted({int(axis) % len(operand.shape) for axis in np.atleast_1d(op.statics[1])}))


def _dims(op: Operator) -> tuple[Dims, Dims]:
    """Return the factors of a reduction's operand and of its result."""
    rank = len(op.operand(0).shape)
    dims, reduced = own_dims(rank), reduced_dimensions(op) if rank else ()
    if op.attrs.get("keep_dims"):
        return dims, tuple(() if i in reduced else names for i, names in enumerate(dims))
    return dims, tuple(names for i, names in enumerate(dims) if i not in reduced)


@op_rule("Sum", "Mean", static=(1,))
def summing(op: Operator) -> Rule:
    dims, result = _dims(op)
    # A mean of integers must be rounded only once, at the end, so its reduced dimensions can't be split.
    rounds = op.type == "Mean" and not op.result.is_float
    fixed = {f"d{i}" for i in reduced_dimensions(op)} if rounds else ()
    return make_rule(op, (dims, None), (result,), fixed=fixed, linear=FIRST)


@op_rule("Max", "Min", static=(1,))
def extremal(op: Operator) -> Rule:
    dims, result = _dims(op)
    reduced = {f"d{i}" for i in reduced_dimensions(op)}
    # The special lowering of a split maximum returns it as a partial sum, which integers can't be.
    if not op.result.is_float:
        return make_rule(op, (dims, None), (result,), fixed=reduced)
    return make_rule(op, (dims, None), (result,), inner=reduced, flops_per_point=3.0)


@op_rule("Prod", "All", "Any", "EuclideanNorm", "ArgMax", "ArgMin", static=(1,))
def unsplit(op: Operator) -> Rule:
    """Return the rule of a reduction whose reduced dimensions can't be split."""
    dims, result = _dims(op)
    return make_rule(op, (dims, None), (result,), fixed={f"d{i}" for i in reduced_dimensions(op)})


@op_rule("L2Loss")
def l2_loss(op: Operator) -> Rule:
    return make_rule(op, (own_dims(len(op.operand(0).shape)),), ((),), flops_per_point=2.0)


@op_rule("Cumsum", "Cumprod", "CumulativeLogsumexp", static=(1,))
def cumulative(op: Operator) -> Rule:
    rank = len(op.result.shape)
    dims, fixed = own_dims(rank), {f"d{int(op.statics[1]) % rank}"}
    return make_rule(op, (dims, None), (dims,), fixed=fixed, linear=FIRST if op.type == "Cumsum" else ())


@op_rule("Softmax", "LogSoftmax")
def softmax(op: Operator) -> Rule:
    dims = (*own_dims(len(op.result.shape) - 1), ("c",))
    return make_rule(op, (dims,), (dims,), inner={"c"}, flops_per_point=5.0)


@op_rule("SoftmaxCrossEntropyWithLogits")
def cross_entropy(op: Operator) -> Rule | str:
    logits, labels = (tensor for _, tensor in op.operands)
    if logits.shape != labels.shape:
        return f"logits {list(logits.shape)} and labels {list(labels.shape)} are broadcast"
    return pattern_rule(op, "n c, n c -> n, n c", inner={"c"}, flops_per_point=8.0)


@op_rule("SparseSoftmaxCrossEntropyWithLogits")
def sparse_cross_entropy(op: Operator) -> Rule:
    return pattern_rule(op, "n c, n -> n, n c", inner={"c"}, flops_per_point=8.0)
