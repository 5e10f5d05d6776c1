"""Rules of reductions. A sum over a split dimension is partial; a maximum over one needs collectives inside the operator."""

from __future__ import annotations

import numpy as np

from ..ir.graph import Operator
from .elementwise import FIRST
from .registry import op_rule
from .rule import Dims, Rule, make_rule


def reduced_dimensions(op: Operator) -> tuple[int, ...]:
    """Return the dimensions that a reduction reduces, as its static second input names them, in ascending order."""
    operand = op.inputs[0]
    assert operand is not None
    return tuple(sorted({int(axis) % len(operand.shape) for axis in np.atleast_1d(op.statics[1])}))


def _dims(op: Operator) -> tuple[Dims, Dims]:
    """Return the factors of a reduction's operand and of its result."""
    operand = op.inputs[0]
    assert operand is not None
    dims = tuple((f"d{i}",) for i in range(len(operand.shape)))
    reduced = reduced_dimensions(op) if operand.shape else ()
    if op.attrs.get("keep_dims"):
        return dims, tuple(() if i in reduced else names for i, names in enumerate(dims))
    return dims, tuple(names for i, names in enumerate(dims) if i not in reduced)


@op_rule("Sum", "Mean", static=(1,))
def summing(op: Operator) -> Rule:
    dims, kept = _dims(op)
    # A mean of integers must be rounded only once, at the end, so its reduced dimensions can't be split.
    rounds = op.type == "Mean" and not op.result.is_float
    fixed = {f"d{i}" for i in reduced_dimensions(op)} if rounds else ()
    return make_rule(op, (dims, None), (kept,), fixed=fixed, linear=FIRST)


@op_rule("Max", "Min", static=(1,))
def extremal(op: Operator) -> Rule:
    dims, kept = _dims(op)
    reduced = {f"d{i}" for i in reduced_dimensions(op)}
    # The special lowering of a split maximum returns it as a partial sum, which integers can't be.
    if not op.result.is_float:
        return make_rule(op, (dims, None), (kept,), fixed=reduced)
    return make_rule(op, (dims, None), (kept,), inner=reduced, flops_per_point=3.0)


@op_rule("Prod", "All", "Any", "EuclideanNorm", static=(1,))
def unsplit(op: Operator) -> Rule:
    """Return the rule of a reduction whose reduced dimensions can't be split."""
    dims, kept = _dims(op)
    return make_rule(op, (dims, None), (kept,), fixed={f"d{i}" for i in reduced_dimensions(op)})


@op_rule("ArgMax", "ArgMin", static=(1,))
def arg_extremal(op: Operator) -> Rule:
    operand = op.inputs[0]
    assert operand is not None
    dims = tuple((f"d{i}",) for i in range(len(operand.shape)))
    (searched,) = reduced_dimensions(op)
    kept = tuple(names for i, names in enumerate(dims) if i != searched)
    return make_rule(op, (dims, None), (kept,), fixed={f"d{searched}"})


@op_rule("L2Loss")
def l2_loss(op: Operator) -> Rule:
    operand = op.inputs[0]
    assert operand is not None
    return make_rule(op, (tuple((f"d{i}",) for i in range(len(operand.shape))),), ((),), flops_per_point=2.0)


@op_rule("Cumsum", static=(1,))
def cumsum(op: Operator) -> Rule:
    operand = op.inputs[0]
    assert operand is not None
    rank = len(operand.shape)
    dims = tuple((f"d{i}",) for i in range(rank))
    return make_rule(op, (dims, None), (dims,), fixed={f"d{int(op.statics[1]) % rank}"}, linear=FIRST)


@op_rule("Cumprod", "CumulativeLogsumexp", static=(1,))
def cumulative(op: Operator) -> Rule:
    rank = len(op.result.shape)
    dims = tuple((f"d{i}",) for i in range(rank))
    return make_rule(op, (dims, None), (dims,), fixed={f"d{int(op.statics[1]) % rank}"})
