"""Rules of softmax and the cross-entropies; over split classes, maximum and sum take collectives inside the operator."""

from __future__ import annotations

from ..ir.graph import Operator
from .registry import op_rule
from .rule import Rule, make_rule, own_dims, pattern_rule


@op_rule("Softmax", "LogSoftmax")
def softmax(op: Operator) -> Rule:
    dims = (*own_dims(len(op.result.shape) - 1), ("c",))
    return make_rule(op, (dims,), (dims,), inner={"c"}, flops_per_point=5.0)


@op_rule("SoftmaxCrossEntropyWithLogits")
def cross_entropy(op: Operator) -> Rule | str:
    logits, labels = (tensor for _, tensor in op.operands)
    if logits.shape != labels.shape:
        return f"logits {list(logits.shape)} and labels {list(labels.shape)} are broadcast"
    return pattern_rule(op, "n c, n c -> n, n c", inner={"c"}, flops_per_point=8.0)


@op_rule("SparseSoftmaxCrossEntropyWithLogits")
def sparse_cross_entropy(op: Operator) -> Rule:
    return pattern_rule(op, "n c, n -> n, n c", inner={"c"}, flops_per_point=8.0)
