"""Reduce a group's arrays elementwise, always in the group's order.

The order is the same in simulation and under MPI, and whichever way the arrays travelled. So every device gets the same
bits, and replicas stay equal. Types of 16 bits and less are summed in float32 and rounded once. A value that overflows
becomes infinite without a warning, as in TensorFlow: a scaled loss is meant to overflow now and then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

REDUCTIONS = {"sum": np.add, "max": np.maximum, "min": np.minimum}


@np.errstate(over="ignore", invalid="ignore")
def reduce_in_order(shards: Sequence[Array], op: str = "sum", out: Array | None = None) -> Array:
    """Return ``((shards[0] op shards[1]) op shards[2]) ...``, in ``out`` where given, else in new memory.

    ``out`` may be one of the shards only if it is the first.

    Raises:
        ValueError: an unknown ``op``.
    """
    if op not in REDUCTIONS:
        raise ValueError(f"unknown reduction {op!r}; expected one of {', '.join(REDUCTIONS)}")
    function, dtype = REDUCTIONS[op], shards[0].dtype
    if out is None:
        out = np.empty_like(shards[0])
    if len(shards) == 1:
        np.copyto(out, shards[0])
    elif op == "sum" and (dtype.kind == "V" or (dtype.kind == "f" and dtype.itemsize <= 2)):  # bfloat16 and float8, float16
        total = shards[0].astype(np.float32)
        for shard in shards[1:]:
            np.add(total, shard.astype(np.float32), out=total)
        np.copyto(out, total, casting="unsafe")
    else:
        function(shards[0], shards[1], out=out)
        for shard in shards[2:]:
            function(out, shard, out=out)
    return out
