"""Rules of elementwise operators, with TensorFlow's broadcasting."""

from __future__ import annotations

from ..ir.graph import Operator, Tensor
from .registry import op_rule
from .rule import Dims, Rule, make_rule

NONLINEAR_UNARY = (
    "Abs Acos Acosh Asin Asinh Atan Atanh BesselI0 BesselI0e BesselI1 BesselI1e Bucketize Ceil CheckNumerics Cos Cosh "
    "Digamma Elu Erf Erfc Erfinv Exp Expm1 Floor Inv Invert IsFinite IsInf IsNan LeakyRelu Lgamma Log Log1p LogicalNot "
    "Ndtri OnesLike Reciprocal Relu Relu6 Rint Round Rsqrt Selu Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Square Tan Tanh"
).split()
LINEAR_UNARY = "Cast Identity Neg PreventGradient Snapshot StopGradient ZerosLike".split()
NONLINEAR_BINARY = (
    "Atan2 BitwiseAnd BitwiseOr BitwiseXor Equal FloorDiv FloorMod Greater GreaterEqual Igamma IgammaGradA Igammac "
    "LeftShift Less LessEqual LogicalAnd LogicalOr Maximum Minimum Mod NextAfter NotEqual Polygamma Pow RightShift "
    "SquaredDifference TruncateDiv TruncateMod Xdivy Xlog1py Xlogy Zeta"
).split()
TOGETHER, ONE_OF_TWO, FIRST = ((0, 1),), ((0,), (1,)), ((0,),)


def broadcast_dims(tensor: Tensor, rank: int) -> Dims:
    """Return the factors of a tensor that is broadcast to ``rank`` dimensions named d0, d1, ...; extents of 1 have none."""
    offset = rank - len(tensor.shape)
    return tuple((f"d{i + offset}",) if extent > 1 else () for i, extent in enumerate(tensor.shape))


def broadcast_rule(op: Operator, linear: tuple[tuple[int, ...], ...] = (), flops_per_point: float = 1.0) -> Rule:
    """Return the rule of an operator that broadcasts its operands and works element by element."""
    rank = len(op.result.shape)
    operands = tuple(None if tensor is None else broadcast_dims(tensor, rank) for tensor in op.inputs)
    results = tuple(broadcast_dims(tensor, rank) for tensor in op.outputs)
    return make_rule(op, operands, results, linear=linear, flops_per_point=flops_per_point)


@op_rule(*NONLINEAR_UNARY, *NONLINEAR_BINARY, "ClipByValue", "Betainc")
def nonlinear(op: Operator) -> Rule:
    return broadcast_rule(op)


@op_rule("Bitcast")
def bitcast(op: Operator) -> Rule:
    """Return the rule of a bitcast.

    If the size of elements changes, the tensor of smaller elements has one more dimension, for the elements that make up a
    larger one.
    """
    operand = op.inputs[0]
    assert operand is not None
    dims = tuple((f"d{i}",) for i in range(min(len(operand.shape), len(op.result.shape))))
    both = (dims if len(tensor.shape) == len(dims) else (*dims, ()) for tensor in (operand, op.result))
    of_operand, of_result = both
    return make_rule(op, (of_operand,), (of_result,))


@op_rule(*LINEAR_UNARY)
def linear_unary(op: Operator) -> Rule:
    # No resharding step can sum a partial tensor of integers, so a cast from integers is not declared linear.
    operand = op.inputs[0]
    return broadcast_rule(op, FIRST if operand is not None and operand.is_float else ())


@op_rule("Add", "AddV2", "Sub")
def additive(op: Operator) -> Rule:
    return broadcast_rule(op, TOGETHER)


@op_rule("AddN")
def add_n(op: Operator) -> Rule:
    return broadcast_rule(op, (tuple(range(len(op.inputs))),))


@op_rule("Mul")
def mul(op: Operator) -> Rule:
    return broadcast_rule(op, ONE_OF_TWO)


# MulNoNan is 0 where its second operand is 0, which is not so for the summands of that operand: it isn't linear in it.
@op_rule("RealDiv", "Div", "DivNoNan", "MulNoNan")
def div(op: Operator) -> Rule:
    return broadcast_rule(op, FIRST)


@op_rule("SelectV2")
def select(op: Operator) -> Rule:
    return broadcast_rule(op, ((1, 2),))


@op_rule("Select")
def select_by_row(op: Operator) -> Rule:
    """Return the rule of the older Select, whose condition has the shape of its branches or only their first dimension."""
    rank = len(op.result.shape)
    dims = broadcast_dims(op.result, rank)
    condition = op.inputs[0]
    assert condition is not None
    condition_dims = dims if len(condition.shape) == rank else dims[: len(condition.shape)]
    return make_rule(op, (condition_dims, dims, dims), (dims,), linear=((1, 2),))


@op_rule("BiasAdd")
def bias_add(op: Operator) -> Rule:
    rank = len(op.result.shape)
    channel = 1 if op.attrs["data_format"] == "NCHW" else rank - 1
    dims = tuple((f"d{i}",) for i in range(rank))
    return make_rule(op, (dims, (dims[channel],)), (dims,), linear=TOGETHER)
