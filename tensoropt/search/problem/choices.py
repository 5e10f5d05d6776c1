"""What strategies may choose beside configs and shared copies; a search may be told to do without."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...common.errors import InputError, short

REUSE = "reuse"
"""A resharded copy is kept for the backward pass, or made again there."""
REMAT = "remat"
"""What an operator makes is kept for the backward pass, or computed again there."""
ZERO = "zero"
"""A parameter, and so its gradient and slots, may lie split finer than it is used: it is gathered for its use then."""
ACCUMULATE = "accumulate"
"""A training step takes its batch in several slices, where the memory limit asks for that; see
:mod:`...sharding.micro_batches`.
"""
CHOICES = (REUSE, REMAT, ZERO, ACCUMULATE)


@dataclass(frozen=True, slots=True)
class Choices:
    """Which of them a Problem has by itself; what may be computed again is :meth:`.ProblemBuilder.build_recomputing`'s."""

    reuse: bool = False
    zero: bool = True


def checked_choices(names: object) -> frozenset[str]:
    """Choices to do without, as a user named them.

    Raises:
        InputError: there is no such choice.
    """
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InputError(f"without= takes a list of choices, such as ['{REUSE}'], got {short(names)}")
    given = tuple(names)
    for name in given:
        if name not in CHOICES:
            raise InputError(f"unknown choice {short(name)}; a search can do without {', '.join(map(repr, CHOICES))}")
    return frozenset(given)
