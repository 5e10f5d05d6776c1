"""Contractions: products of matrices, batches of them, and Einstein sums."""

from __future__ import annotations

from ..ir import Operator, Tensor
from .elementwise import ONE_OF_TWO, broadcast_dims
from .registry import op_rule
from .rule import Dims, Rule, make_rule, pattern_rule


@op_rule("MatMul")
def matmul(op: Operator) -> Rule:
    left = "k m" if op.attrs["transpose_a"] else "m k"
    right = "n k" if op.attrs["transpose_b"] else "k n"
    return pattern_rule(op, f"{left}, {right} -> m n", linear=ONE_OF_TWO, flops_per_point=2.0)


@op_rule("BatchMatMulV2", "BatchMatMul", "BatchMatMulV3")
def batch_matmul(op: Operator) -> Rule:
    left, right = (tensor for _, tensor in op.operands)
    rank = len(op.result.shape)

    def operand(tensor: Tensor, matrix: Dims, swapped: bool) -> Dims:
        batch = broadcast_dims(tensor, rank)[:-2]
        return batch + (matrix[::-1] if swapped else matrix)

    result = (*broadcast_dims(op.result, rank)[:-2], ("m",), ("n",))
    return make_rule(
        op,
        (
            operand(left, (("m",), ("k",)), op.attrs["adj_x"]),
            operand(right, (("k",), ("n",)), op.attrs["adj_y"]),
        ),
        (result,),
        linear=ONE_OF_TWO,
        flops_per_point=2.0,
    )


@op_rule("Einsum")
def einsum(op: Operator) -> Rule | str:
    equation = op.attrs["equation"].replace(" ", "")
    if "..." in equation:
        return f"equation '{equation}' has an ellipsis"
    left, right = equation.split("->")
    terms = left.split(",")
    if any(len(set(term)) != len(term) for term in [*terms, right]):
        return f"equation '{equation}' repeats a letter within a term"
    pattern = ", ".join(" ".join(term) for term in terms) + " -> " + " ".join(right)
    return pattern_rule(
        op, pattern, linear=tuple((i,) for i in range(len(terms))), flops_per_point=2.0 if len(terms) > 1 else 1.0
    )
