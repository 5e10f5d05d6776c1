"""Write counts in words."""

from __future__ import annotations

from collections.abc import Sequence


def counted(n: int, noun: str) -> str:
    """Return a number with its noun: ``1 device``, ``3 devices``, ``2 batches``."""
    return f"{n} {noun}{'' if n == 1 else 'es' if noun.endswith('ch') else 's'}"


def listed(numbers: Sequence[int]) -> str:
    """Return consecutive numbers with commas, or as ``0-63`` if there are more than eight."""
    return f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 8 else ", ".join(map(str, numbers))
