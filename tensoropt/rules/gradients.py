"""Rules of the operators of TensorFlow's gradients, found in bodies of custom gradients; they are linear in the gradient."""

from __future__ import annotations

from ..ir.graph import Operator
from .elementwise import FIRST, broadcast_rule
from .registry import op_rule
from .rule import Rule

OF_RESULT = "InvGrad ReciprocalGrad RsqrtGrad SigmoidGrad SqrtGrad TanhGrad".split()
OF_OPERAND = "EluGrad LeakyReluGrad Relu6Grad ReluGrad SeluGrad SoftplusGrad SoftsignGrad".split()


@op_rule(*OF_RESULT)
def of_result(op: Operator) -> Rule:
    """Return the rule of a gradient whose operands are the function's result and the incoming gradient."""
    return broadcast_rule(op, ((1,),), flops_per_point=3.0)


@op_rule(*OF_OPERAND)
def of_operand(op: Operator) -> Rule:
    """Return the rule of a gradient whose operands are the incoming gradient and the function's operand or result."""
    return broadcast_rule(op, FIRST)
