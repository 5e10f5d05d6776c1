"""Find the turning point of a frontier: the point at which it bends."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def turning_point(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> int:
    """Return the index of the point farthest below the line between the two ends, with both costs normalised to [0, 1].

    Up to this point the first cost buys much of the second; beyond it, little. Where no point is below the line (one or two
    points, or a frontier that bulges outwards) there is no bend, and the result is the first point. Of equally distant ones
    it is the first too.

    Args:
        first: strictly ascending costs, number[P].
        second: strictly descending costs, number[P].
    """
    if len(first) < 3:
        return 0
    ascending = (first - first[0]) / (first[-1] - first[0])
    descending = (second - second[-1]) / (second[0] - second[-1])
    depth = 1.0 - ascending - descending  # proportional to the signed distance from the line between the ends
    return int(np.argmax(depth))
