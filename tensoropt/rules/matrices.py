"""Rules of operators on batches of matrices.

Batch dimensions can be split. Of other dimensions only the rows and columns of MatrixBandPart can be, and the columns of the
right sides of equations.
"""

from __future__ import annotations

from ..ir.graph import Operator, Tensor
from .elementwise import FIRST, TOGETHER, broadcast_dims
from .registry import op_rule
from .rule import Dims, Rule, make_rule, own_dims


def _batches(op: Operator, linear: tuple[tuple[int, ...], ...] = (), flops_per_point: float = 1.0) -> Rule:
    """Return the rule of an operator of which only the batch dimensions can be split: all but those of matrices."""
    n_batch = max(len(op.operand(0).shape), len(op.result.shape)) - 2

    def dims(tensor: Tensor) -> Dims:
        return own_dims(len(tensor.shape), range(n_batch, len(tensor.shape)))

    operands = tuple(None if tensor is None else dims(tensor) for tensor in op.inputs)
    return make_rule(op, operands, tuple(map(dims, op.outputs)), linear=linear, flops_per_point=flops_per_point)


@op_rule("MatrixBandPart", static=(1, 2))
def band_part(op: Operator) -> Rule:
    dims = (*own_dims(len(op.result.shape) - 2), ("m",), ("n",))
    return make_rule(op, (dims, None, None), (dims,), positional={"m", "n"}, linear=FIRST)


@op_rule("MatrixDiagV3", static=(1, 2, 3, 4))
@op_rule("MatrixDiagPartV3", static=(1, 2))
def diagonal(op: Operator) -> Rule:
    padding = op.statics[max(op.statics)]
    return _batches(op, FIRST if not padding.any() else ())


@op_rule("MatrixSetDiagV3", static=(2,))
def set_diagonal(op: Operator) -> Rule:
    return _batches(op, TOGETHER)


@op_rule("Cholesky", "MatrixInverse", "MatrixDeterminant", "LogMatrixDeterminant")
def of_matrices(op: Operator) -> Rule:
    return _batches(op, flops_per_point=2.0 * op.operand(0).shape[-1] ** 3)


@op_rule("MatrixSolve", "MatrixTriangularSolve")
def solve(op: Operator) -> Rule:
    """Return the rule of solving equations; right sides are solved independently, so their columns can be split as well."""
    matrix, sides = (tensor for _, tensor in op.operands)
    rank = len(op.result.shape)
    batch_of_matrix, batch_of_sides, batch = (broadcast_dims(t, rank)[:-2] for t in (matrix, sides, op.result))
    columns: Dims = ((), ("columns",))
    return make_rule(
        op,
        ((*batch_of_matrix, (), ()), (*batch_of_sides, *columns)),
        ((*batch, *columns),),
        linear=((1,),),
        flops_per_point=2.0 * matrix.shape[-1] ** 2,
    )
