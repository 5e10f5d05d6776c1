"""Rules of operators on batches of matrices.

Batch dimensions can be split. Of other dimensions only the rows and columns of MatrixBandPart can be, and the columns of the
right sides of equations.
"""

from __future__ import annotations

from ..ir.graph import Operator, Tensor
from .elementwise import FIRST, TOGETHER, broadcast_dims
from .registry import op_rule
from .rule import Dims, Rule, make_rule


def _batched(tensor: Tensor | None, n_batch: int) -> Dims | None:
    """Return a tensor's factors: d0, d1, ... for the batch dimensions, none for the others; None for a static input."""
    return None if tensor is None else tuple((f"d{i}",) if i < n_batch else () for i in range(len(tensor.shape)))


def _batches(op: Operator, n_batch: int, linear: tuple[tuple[int, ...], ...] = (), flops_per_point: float = 1.0) -> Rule:
    """Return the rule of an operator of which only the batch dimensions can be split."""
    operands = tuple(_batched(tensor, n_batch) for tensor in op.inputs)
    results = tuple(_batched(tensor, n_batch) or () for tensor in op.outputs)
    return make_rule(op, operands, results, linear=linear, flops_per_point=flops_per_point)


@op_rule("MatrixBandPart", static=(1, 2))
def band_part(op: Operator) -> Rule:
    dims = (*(_batched(op.result, len(op.result.shape) - 2) or ())[:-2], ("m",), ("n",))
    return make_rule(op, (dims, None, None), (dims,), positional={"m", "n"}, linear=FIRST)


@op_rule("MatrixDiagV3", static=(1, 2, 3, 4))
def diagonal_matrix(op: Operator) -> Rule:
    return _batches(op, len(op.result.shape) - 2, FIRST if not op.statics[4].any() else ())


@op_rule("MatrixDiagPartV3", static=(1, 2))
def diagonal_part(op: Operator) -> Rule:
    operand = op.inputs[0]
    assert operand is not None
    return _batches(op, len(operand.shape) - 2, FIRST if not op.statics[2].any() else ())


@op_rule("MatrixSetDiagV3", static=(2,))
def set_diagonal(op: Operator) -> Rule:
    return _batches(op, len(op.result.shape) - 2, TOGETHER)


@op_rule("Cholesky", "MatrixInverse", "MatrixDeterminant", "LogMatrixDeterminant")
def of_matrices(op: Operator) -> Rule:
    operand = op.inputs[0]
    assert operand is not None
    extent = operand.shape[-1]
    return _batches(op, len(operand.shape) - 2, flops_per_point=2.0 * extent**3)


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
