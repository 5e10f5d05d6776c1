"""Operators of TensorFlow's gradients, which stand in bodies of custom gradients; linear in the gradient."""

from __future__ import annotations

from ..ir.graph import Operator
from .elementwise import FIRST, broadcast_rule
from .registry import op_rule
from .rule import Rule

OF_RESULT = "InvGrad ReciprocalGrad RsqrtGrad SigmoidGrad SqrtGrad TanhGrad".split()
OF_OPERAND = "EluGrad LeakyReluGrad Relu6Grad ReluGrad SeluGrad SoftplusGrad SoftsignGrad".split()


@op_rule(*OF_RESULT)
def of_result(op: Operator) -> Rule:
    """From the function's result and the gradient."""
    return broadcast_rule(op, ((1,),), flops_per_point=3.0)


@op_rule(*OF_OPERAND)
def of_operand(op: Operator) -> Rule:
    """From the gradient, and the function's operand or result."""
    return broadcast_rule(op, FIRST)
