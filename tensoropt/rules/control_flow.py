"""Rules of composite operators (loops, custom gradients), which follow from the rules of the operators in their bodies."""

from __future__ import annotations

from dataclasses import replace

from ..ir.body import COMPOSITES, VALUE_SHAPED
from ..ir.graph import Operator
from .composition import Composition
from .registry import op_rule
from .rule import Rule, make_rule


@op_rule(*COMPOSITES)
def composite(op: Operator) -> Rule | str:
    composition = Composition(op)
    if composition.without:
        return composition.without
    operands = tuple(composition.dims("operand", i, len(tensor.shape)) for i, tensor in op.operands)
    results = tuple(composition.dims("result", j, len(tensor.shape)) for j, tensor in enumerate(op.outputs))
    rule = make_rule(op, operands, results, composition.extents)
    return replace(rule, even=rule.even | composition.even)


@op_rule(VALUE_SHAPED)
def value_shaped(op: Operator) -> str:
    return "values decide its shapes or its branch"
