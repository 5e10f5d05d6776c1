"""Rules of contractions (products of matrices and Einstein sums), and of operators on batches of matrices.

Batch dimensions can be split. Of other dimensions only the rows and columns of MatrixBandPart can be, and the columns of the
right sides of equations.
"""

from __future__ import annotations

from ..ir.graph import Operator, Tensor
from .elementwise import FIRST, ONE_OF_TWO, TOGETHER, broadcast_dims
from .registry import op_rule
from .rule import Dims, Rule, make_rule, own_dims, pattern_rule


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


@op_rule("MatMul")
def matmul(op: Operator) -> Rule:
    left = "k m" if op.attrs["transpose_a"] else "m k"
    right = "n k" if op.attrs["transpose_b"] else "k n"
    return pattern_rule(op, f"{left}, {right} -> m n", linear=ONE_OF_TWO, flops_per_point=2.0)


@op_rule("BatchMatMulV2", "BatchMatMul", "BatchMatMulV3")
def batch_matmul(op: Operator) -> Rule:
    left, right = (tensor for _, tensor in op.operands)
    rank = len(op.result.shape)

    def operand(tensor: Tensor, matrix: Dims, is_swapped: bool) -> Dims:
        batch = broadcast_dims(tensor, rank)[:-2]
        return batch + (matrix[::-1] if is_swapped else matrix)

    result = (*broadcast_dims(op.result, rank)[:-2], ("m",), ("n",))
    return make_rule(
        op,
        (operand(left, (("m",), ("k",)), op.attrs["adj_x"]), operand(right, (("k",), ("n",)), op.attrs["adj_y"])),
        (result,),
        linear=ONE_OF_TWO,
        flops_per_point=2.0,
    )


@op_rule("Einsum")
def einsum(op: Operator) -> Rule | str:
    """Return the rule of an Einstein sum.

    An ellipsis stands for broadcast dimensions e0, e1, ..., which are numbered so that the last ones match.
    """
    equation = op.attrs["equation"].replace(" ", "")
    left, right = equation.split("->")
    terms = left.split(",")
    if any(len(set(term.replace("...", ""))) != len(term.replace("...", "")) for term in [*terms, right]):
        return f"equation '{equation}' repeats a letter within a term"
    operands = [tensor for _, tensor in op.operands]
    n_broadcast = max(_n_broadcast(term, tensor) for term, tensor in zip(terms, operands, strict=True))
    if n_broadcast and "..." not in right:
        return f"equation '{equation}' sums over an ellipsis"
    return make_rule(
        op,
        tuple(_term_dims(term, tensor, n_broadcast) for term, tensor in zip(terms, operands, strict=True)),
        (_term_dims(right, op.result, n_broadcast),),
        linear=tuple((i,) for i in range(len(terms))),
        flops_per_point=2.0 if len(terms) > 1 else 1.0,
    )


def _n_broadcast(term: str, tensor: Tensor) -> int:
    """Return how many dimensions of a tensor the ellipsis in its term stands for."""
    return len(tensor.shape) - len(term.replace("...", ""))


def _term_dims(term: str, tensor: Tensor, n_broadcast: int) -> Dims:
    before, _, after = term.partition("...")
    own = _n_broadcast(term, tensor)
    extents = tensor.shape[len(before) : len(before) + own]
    middle = tuple((f"e{n_broadcast - own + i}",) if extent > 1 else () for i, extent in enumerate(extents))
    return (*((letter,) for letter in before), *middle, *((letter,) for letter in after))
