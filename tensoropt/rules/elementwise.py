"""Rules of elementwise operators, with TensorFlow's broadcasting."""

from __future__ import annotations

from ..ir.graph import Operator, Tensor
from .registry import op_rule
from .rule import Dims, Rule, make_rule, own_dims

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
# TensorFlow's gradients, found in bodies of custom gradients. Their operands are the function's result and the incoming
# gradient; or the incoming gradient and the function's operand or result.
OF_RESULT = "InvGrad ReciprocalGrad RsqrtGrad SigmoidGrad SqrtGrad TanhGrad".split()
OF_OPERAND = "EluGrad LeakyReluGrad Relu6Grad ReluGrad SeluGrad SoftplusGrad SoftsignGrad".split()
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


_LINEAR_IN: dict[str, tuple[tuple[int, ...], ...]] = {
    **dict.fromkeys([*NONLINEAR_UNARY, *NONLINEAR_BINARY, *"Angle Betainc ClipByValue ComplexAbs".split()], ()),
    **dict.fromkeys("Add AddV2 Complex Sub".split(), TOGETHER),
    "Mul": ONE_OF_TWO,
    # MulNoNan is 0 where its second operand is 0, which is not so for the summands of that operand: it isn't linear in it.
    **dict.fromkeys([*LINEAR_UNARY, *OF_OPERAND, *"Conj Div DivNoNan Imag MulNoNan Real RealDiv".split()], FIRST),
    **dict.fromkeys(OF_RESULT, ((1,),)),
    "SelectV2": ((1, 2),),
}
"""The groups of operands in which an operator of each type is linear."""


@op_rule(*_LINEAR_IN)
def elementwise(op: Operator) -> Rule:
    # No resharding step can sum a partial tensor of integers, so a cast from integers is not declared linear.
    linear = tuple(group for group in _LINEAR_IN[op.type] if all(op.operand(i).is_float for i in group))
    return broadcast_rule(op, linear, 3.0 if op.type in OF_RESULT else 1.0)


@op_rule("Bitcast")
def bitcast(op: Operator) -> Rule:
    """Return the rule of a bitcast.

    If the size of elements changes, the tensor of smaller elements has one more dimension, for the elements that make up a
    larger one.
    """
    operand = op.operand(0)
    dims = own_dims(min(len(operand.shape), len(op.result.shape)))
    dims_of = [dims if len(tensor.shape) == len(dims) else (*dims, ()) for tensor in (operand, op.result)]
    return make_rule(op, (dims_of[0],), (dims_of[1],))


@op_rule("AddN")
def add_n(op: Operator) -> Rule:
    return broadcast_rule(op, (tuple(range(len(op.inputs))),))


@op_rule("Select")
def select_by_row(op: Operator) -> Rule:
    """Return the rule of the older Select, whose condition has the shape of its branches or only their first dimension."""
    rank = len(op.result.shape)
    dims = broadcast_dims(op.result, rank)
    return make_rule(op, (dims[: len(op.operand(0).shape)], dims, dims), (dims,), linear=((1, 2),))


@op_rule("BiasAdd")
def bias_add(op: Operator) -> Rule:
    rank = len(op.result.shape)
    channel = 1 if op.attrs["data_format"] == "NCHW" else rank - 1
    dims = own_dims(rank)
    return make_rule(op, (dims, (dims[channel],)), (dims,), linear=TOGETHER)
