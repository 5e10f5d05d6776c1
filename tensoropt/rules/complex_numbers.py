"""Rules of operators on complex numbers: their parts, and Fourier transforms.

A Fourier transform is linear. Its transformed dimensions can't be split; all others can.
"""

from __future__ import annotations

from ..ir.graph import Operator, Tensor
from .elementwise import FIRST, TOGETHER, broadcast_rule
from .registry import op_rule
from .rule import Dims, Rule, make_rule

OF_COMPLEX = ("FFT", "FFT2D", "FFT3D", "IFFT", "IFFT2D", "IFFT3D")
OF_REAL = ("RFFT", "RFFT2D", "RFFT3D", "IRFFT", "IRFFT2D", "IRFFT3D")
"""Transforms in which half of the result (or of the operand, for the inverse ones) is left out, since the other half follows
from it. Their second input is the extents of the transform."""


@op_rule("Real", "Imag", "Conj")
def part(op: Operator) -> Rule:
    """Return the rule of a part of complex numbers; it is linear: the part of a sum is the sum of the parts."""
    return broadcast_rule(op, FIRST)


@op_rule("ComplexAbs", "Angle")
def polar_part(op: Operator) -> Rule:
    return broadcast_rule(op)


@op_rule("Complex")
def of_parts(op: Operator) -> Rule:
    return broadcast_rule(op, TOGETHER)


@op_rule(*OF_COMPLEX)
def transform(op: Operator) -> Rule:
    return _transform(op, ())


@op_rule(*OF_REAL, static=(1,))
def transform_of_real(op: Operator) -> Rule:
    return _transform(op, (None,))


def _transform(op: Operator, lengths: tuple[None, ...]) -> Rule:
    """Return the rule of a Fourier transform; ``lengths`` has a None for each static input."""
    n_transformed = int(op.type[-2]) if op.type.endswith("D") else 1
    operand = op.inputs[0]
    assert operand is not None
    dims = (_dims(operand, n_transformed), *lengths)
    return make_rule(op, dims, (_dims(op.result, n_transformed),), linear=FIRST)


def _dims(tensor: Tensor, n_transformed: int) -> Dims:
    """Return the factors of a tensor's dimensions; the last ones, which are transformed, have none."""
    n_others = len(tensor.shape) - n_transformed
    return (*((f"d{i}",) for i in range(n_others)), *((),) * n_transformed)
