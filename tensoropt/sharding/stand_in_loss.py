"""Give a stage that is planned by itself a loss: the sum of all elements that it sends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..common.errors import InputError
from ..ir.graph import ARGUMENTS, Operator, Tensor


def sum_of_all(name: str, tensors: Sequence[Tensor]) -> list[Operator]:
    """Return operators that sum all elements of tensors; the last one's result is the sum.

    Raises:
        InputError: no tensor has a gradient, or they are of several types.
    """
    if not tensors:
        raise InputError("a stage would send nothing that is trained; ask for fewer stages")
    types = sorted({tensor.dtype for tensor in tensors})
    if len(types) > 1:
        raise InputError(f"a stage would send gradients of the types {' and '.join(types)}; use stages=1")
    operators: list[Operator] = []
    for number, tensor in enumerate(tensors):
        total = Tensor(f"{name}/sum_{number}:0", (), tensor.dtype)
        axes = {1: np.arange(len(tensor.shape), dtype=np.int32)}
        attributes = {"keep_dims": False, ARGUMENTS: (("input", None), ("reduction_indices", None))}
        operators.append(Operator(f"{name}/sum_{number}", "Sum", (tensor, None), (total,), axes, attributes))
    for number, op in enumerate(operators[1:]):
        sums = operators[-1].result if number else operators[0].result
        result = Tensor(f"{name}/add_{number}:0", (), tensor.dtype)
        attributes = {ARGUMENTS: (("x", None), ("y", None))}
        operators.append(Operator(f"{name}/add_{number}", "AddV2", (sums, op.result), (result,), {}, attributes))
    return operators
