"""The points of a curve that no other beats in both the time and the price of a sample."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .plan_rows import Row


def unbeaten(points: Sequence[Row]) -> list[int]:
    """Return the numbers of these points, by ascending time; what has no price, or doesn't fit, isn't compared."""
    compared = [
        (1 / point["samples_per_s"], point["price_per_hour"] / point["samples_per_s"], number)
        for number, point in enumerate(points)
        if point.get("samples_per_s") and point.get("price_per_hour") is not None
    ]
    numbers, least = list[int](), math.inf
    for _, price, number in sorted(compared):
        if price < least:
            numbers.append(number)
            least = price
    return numbers
