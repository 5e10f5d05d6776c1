"""Rules of searching and sorting along one dimension, which can't be split; all others can."""

from __future__ import annotations

from ..ir.graph import Operator
from .registry import op_rule
from .rule import Rule, make_rule, own_dims, pattern_rule


@op_rule("TopKV2", static=(1,))
def top_k(op: Operator) -> Rule:
    rows = own_dims(len(op.operand(0).shape) - 1)
    return make_rule(op, ((*rows, ("c",)), None), ((*rows, ()), (*rows, ())), fixed={"c"}, flops_per_point=5.0)


@op_rule("InTopKV2", static=(2,))
def in_top_k(op: Operator) -> Rule:
    return pattern_rule(op, "n c, n -> n", fixed={"c"})


@op_rule("LowerBound", "UpperBound")
def search_sorted(op: Operator) -> Rule:
    return pattern_rule(op, "n sorted, n v -> n v", fixed={"sorted"})


@op_rule("ReverseSequence")
def reverse_sequence(op: Operator) -> Rule:
    rank = len(op.result.shape)
    dims = own_dims(rank, [op.attrs["seq_dim"] % rank])
    return make_rule(op, (dims, (dims[op.attrs["batch_dim"] % rank],)), (dims,), linear=((0,),))
