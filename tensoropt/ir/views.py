"""Operators whose results are views of their operand's memory."""

from __future__ import annotations

from .body import CUSTOM_GRADIENT, FORM
from .graph import Operator, Tensor

ALIASES = frozenset("Reshape ExpandDims Squeeze Identity StopGradient Snapshot PreventGradient".split())


def viewed_operand(op: Operator, name: str) -> Tensor | None:
    """Return the operand of which an operator's result ``name`` is a view, or None if it isn't a view."""
    if op.type == CUSTOM_GRADIENT:
        passed = op.attrs[FORM].passed[[tensor.name for tensor in op.outputs].index(name)]
        return op.inputs[passed]
    return op.operands[0][1] if op.type in ALIASES else None
