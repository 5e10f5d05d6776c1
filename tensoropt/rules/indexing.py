"""Rules of lookups by index, of one-hot vectors, and of adding rows up by index.

If a sum is split along indices, each rank uses the rows of its own indices.
"""

from __future__ import annotations

from ..ir.graph import Operator
from .elementwise import FIRST
from .registry import op_rule
from .rule import Dims, Rule, make_rule


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


def _dims(op: Operator, position: int) -> tuple[Dims, Dims, Dims]:
    """Return the factors of all dimensions of the indices but the last, and of the result's that are indexed, and aren't."""
    *rows, depth = op.operand(position).shape
    rest = tuple((f"d{k}",) for k in range(depth, len(op.result.shape)))
    return tuple((f"i{k}",) for k in range(len(rows))), tuple((f"p{k}",) for k in range(depth)), rest


@op_rule("ScatterNd", static=(2,))
def scatter_nd(op: Operator) -> Rule:
    rows, places, rest = _dims(op, 0)
    fixed = () if op.result.is_float else {name for (name,) in rows}
    operands = ((*rows, ()), (*rows, *rest), None)
    positional = {name for (name,) in places}
    return make_rule(op, operands, ((*places, *rest),), fixed=fixed, positional=positional, linear=((1,),))


@op_rule(*(f"TensorScatter{kind}" for kind in ("Add", "Max", "Min", "Sub", "Update")))
def onto_tensor(op: Operator) -> Rule:
    """Return the rule of combining rows with a tensor; the indexed dimensions can be split if rows are added."""
    rows, places, rest = _dims(op, 1)
    # If rows were split, each device's sum of them would have to be added to just one summand of the tensor.
    positional = {name for (name,) in places}
    fixed = {name for (name,) in rows} | (set() if op.type.endswith(("Add", "Sub")) else positional)
    result = (*places, *rest)
    dims = (result, (*rows, ()), (*rows, *rest))
    linear = () if op.type.endswith(("Max", "Min")) else ((0, 2),)
    return make_rule(op, dims, (result,), fixed=fixed, positional=positional, linear=linear)


@op_rule("UnsortedSegmentSum", "UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd", static=(2,))
def unsorted_segments(op: Operator) -> Rule:
    data, segments = op.operand(0), op.operand(1)
    n = len(segments.shape)
    rows = tuple((f"i{k}",) for k in range(n))
    rest = tuple((f"d{k}",) for k in range(n, len(data.shape)))
    adds = op.type == "UnsortedSegmentSum"
    fixed = () if adds and data.is_float else {name for (name,) in rows}
    operands = ((*rows, *rest), rows, None)
    linear = ((0,),) if adds else ()
    return make_rule(op, operands, ((("p0",), *rest),), fixed=fixed, positional={"p0"}, linear=linear)


@op_rule("DenseBincount", "Bincount", static=(1,))
def bincount(op: Operator) -> Rule:
    """Return the rule of counting integers, per row if there are rows.

    Weights have the operand's shape, or no elements.
    """
    operand, weights = op.operand(0), op.operand(2)
    has_rows = len(operand.shape) == 2
    dims: Dims = (*((("d0",),) if has_rows else ()), *((("counted",),) if operand.shape else ()))
    # A binary output (whether a number occurs at all) isn't a sum, and integers can't be partial.
    fixed = {"counted"} if op.attrs.get("binary_output") or not op.result.is_float else ()
    weight_dims = dims if weights.shape == operand.shape else ((),) * len(weights.shape)
    linear = ((2,),) if weights.shape == operand.shape and not op.attrs.get("binary_output") else ()
    result: Dims = (*((("d0",),) if has_rows else ()), ())
    return make_rule(op, (dims, None, weight_dims), (result,), fixed=fixed, linear=linear)
