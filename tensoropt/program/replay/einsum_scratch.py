"""What TensorFlow's Einsum takes for itself while it runs: its operands and its result in another order of dimensions.

It multiplies by a batched product of matrices, for which each operand's dimensions have to come as batch, free, contracted
or as batch, contracted, free, each kind in the order in which the equation names its labels first; an operand of another
order is transposed. The product's are batch, free of the first, free of the second; where the result's are others it is
transposed, too, and the product and all transposed operands are there meanwhile (``einsum_op_impl.h``).
"""

from __future__ import annotations

from collections.abc import Sequence

_BATCH, _FREE, _CONTRACTED, _SUMMED = range(4)
_CONTRACTED_FIRST = {_BATCH: 0, _CONTRACTED: 1, _FREE: 2}


def einsum_scratch_bytes(equation: str, operand_bytes: Sequence[int], result_bytes: int) -> int:
    """Of an equation such as ``bqhd,bkhd->bhqk``, and the bytes of its operands and its result.

    0 with an ellipsis, and of anything but two operands. What is transposed of an operand to be summed over dimensions that
    no other has doesn't count: it is gone before the product.
    """
    taken, made = equation.replace(" ", "").split("->")
    operands = taken.split(",")
    if len(operands) != 2 or len(operand_bytes) != 2 or "..." in equation:
        return 0
    place = {label: i for i, label in enumerate(dict.fromkeys("".join(operands)))}
    kind = {label: _kind(label, operands, made) for label in place}
    total = 0
    for labels, n_bytes in zip(operands, operand_bytes, strict=True):
        if any(kind[label] == _SUMMED for label in labels):
            continue
        orders = [(kind[x], place[x]) for x in labels], [(_CONTRACTED_FIRST[kind[x]], place[x]) for x in labels]
        if all(order != sorted(order) for order in orders):
            total += n_bytes
    by_place = sorted(place, key=place.__getitem__)
    product = [x for x in by_place if kind[x] == _BATCH]
    product += [x for labels in operands for x in by_place if x in labels and kind[x] == _FREE]
    return total if product == list(made) else total + result_bytes


def equation_of_gradient(equation: str, position: int) -> str:
    """For the gradient of one of two operands, from that of the result and the other operand."""
    taken, made = equation.split("->")
    operands = taken.split(",")
    return f"{made},{operands[1 - position]}->{operands[position]}"


def _kind(label: str, operands: Sequence[str], made: str) -> int:
    is_shared = all(label in labels for labels in operands)
    if label in made:
        return _BATCH if is_shared else _FREE
    return _CONTRACTED if is_shared else _SUMMED
