"""Write counts in words."""

from __future__ import annotations


def counted(n: int, noun: str) -> str:
    """Return a number with its noun: ``1 device``, ``3 devices``."""
    return f"{n} {noun}{'s' * (n != 1)}"
