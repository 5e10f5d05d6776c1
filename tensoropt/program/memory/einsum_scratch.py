"""Compute the workspace of TensorFlow's Einsum: transposed copies of its operands and of its result.

Einsum multiplies by a batched matrix product. For that, each operand's dimensions must come in the order batch, free,
contracted or in the order batch, contracted, free; within a kind they must come in the order in which the equation first
names their labels. An operand in another order is transposed. The product has the dimensions batch, free of the first
operand, free of the second. If the result has another order, the product is transposed too; the product and all transposed
operands are alive meanwhile (``einsum_op_impl.h``).
"""

from __future__ import annotations

from collections.abc import Sequence

_BATCH, _FREE, _CONTRACTED, _SUMMED = range(4)
_CONTRACTED_FIRST = {_BATCH: 0, _CONTRACTED: 1, _FREE: 2}


def einsum_scratch_bytes(equation: str, operand_bytes: Sequence[int], result_bytes: int) -> int:
    """Return the bytes of Einsum's workspace, from its equation and the bytes of its operands and its result.

    An equation with an ellipsis, or with any number of operands but two, returns 0. An operand with labels that are neither
    in the other operand nor in the result is first transposed and summed over these; that copy isn't counted, since it is
    freed before the product.

    Args:
        equation: such as ``bqhd,bkhd->bhqk``.
    """
    inputs, result = equation.replace(" ", "").split("->")
    operands = inputs.split(",")
    if len(operands) != 2 or len(operand_bytes) != 2 or "..." in equation:
        return 0
    node = {label: i for i, label in enumerate(dict.fromkeys("".join(operands)))}
    kind = {label: _kind(label, operands, result) for label in node}
    total = 0
    for labels, n_bytes in zip(operands, operand_bytes, strict=True):
        if any(kind[label] == _SUMMED for label in labels):
            continue
        orders = [(kind[x], node[x]) for x in labels], [(_CONTRACTED_FIRST[kind[x]], node[x]) for x in labels]
        if all(order != sorted(order) for order in orders):
            total += n_bytes
    by_place = sorted(node, key=node.__getitem__)
    product = [x for x in by_place if kind[x] == _BATCH]
    product += [x for labels in operands for x in by_place if x in labels and kind[x] == _FREE]
    return total if product == list(result) else total + result_bytes


def equation_of_gradient(equation: str, position: int) -> str:
    """Return the equation of an operand's gradient: its operands are the gradient of the result and the other operand.

    Args:
        equation: the forward equation, of two operands.
        position: 0 or 1, the operand whose gradient is computed.
    """
    inputs, result = equation.split("->")
    operands = inputs.split(",")
    return f"{result},{operands[1 - position]}->{operands[position]}"


def _kind(label: str, operands: Sequence[str], result: str) -> int:
    """Return the kind of a label: batch, free, contracted, or summed (only in one operand and not in the result)."""
    is_shared = all(label in labels for labels in operands)
    if label in result:
        return _BATCH if is_shared else _FREE
    return _CONTRACTED if is_shared else _SUMMED
