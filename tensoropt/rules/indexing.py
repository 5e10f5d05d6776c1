"""Rules of lookups by index, and of one-hot vectors."""

from __future__ import annotations

from ..ir.graph import Operator
from .elementwise import FIRST
from .registry import op_rule
from .rule import Rule, make_rule


def batch_dimensions(op: Operator) -> int:
    """Return how many of the leading dimensions of a lookup's indices are those of a batch."""
    n_batch: int = op.attrs["batch_dims"]
    return n_batch + len(op.operand(1).shape) if n_batch < 0 else n_batch


@op_rule("GatherV2", static=(2,))
def gather(op: Operator) -> Rule:
    """Return the rule of a lookup; if the rows are split, each device finds some of them, so the result is partial."""
    params, indices = op.operand(0), op.operand(1)
    axis = int(op.statics[2]) % len(params.shape)
    n_batch = batch_dimensions(op)
    params_dims = tuple(("rows",) if k == axis else (f"d{k}",) for k in range(len(params.shape)))
    index_dims = tuple((f"d{k}",) if k < n_batch else (f"i{k}",) for k in range(len(indices.shape)))
    result = (*params_dims[:axis], *index_dims[n_batch:], *params_dims[axis + 1 :])
    fixed = () if params.is_float else ("rows",)
    extents = {"rows": params.shape[axis]}
    dims = (params_dims, index_dims, None)
    return make_rule(op, dims, (result,), extents, FIRST, fixed=fixed, positional={"rows"}, flops_per_point=0.0)


@op_rule("GatherNd")
def gather_nd(op: Operator) -> Rule:
    """Return the rule of a lookup in several dimensions.

    The last dimension of the indices holds one position for each of the leading dimensions of the first operand.
    """
    params, indices = op.operand(0), op.operand(1)
    depth = indices.shape[-1]
    places = tuple((f"p{k}",) for k in range(depth))
    rest = tuple((f"d{k}",) for k in range(depth, len(params.shape)))
    index_dims = tuple((f"i{k}",) for k in range(len(indices.shape) - 1))
    positional = {f"p{k}" for k in range(depth)}
    fixed = () if params.is_float else positional
    dims, result = ((*places, *rest), (*index_dims, ())), (*index_dims, *rest)
    return make_rule(op, dims, (result,), fixed=fixed, positional=positional, linear=FIRST, flops_per_point=0.0)


@op_rule("OneHot", static=(1, 2, 3))
def one_hot(op: Operator) -> Rule:
    """Return the rule of one-hot vectors; if these are split, each device makes the elements of its block."""
    indices = op.operand(0)
    rank = len(op.result.shape)
    new = op.attrs["axis"] % rank
    dims = iter((f"i{k}",) for k in range(len(indices.shape)))
    result = tuple(("depth",) if k == new else next(dims) for k in range(rank))
    operand = tuple(names for k, names in enumerate(result) if k != new)
    return make_rule(op, (operand, None, None, None), (result,), positional={"depth"})
