"""Name the choices of a strategy beside configs and shared copies; a search can be told to do without each of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...common.errors import InputError, short

REUSE = "reuse"
"""A resharded copy is saved for the backward pass, or regathered there."""
REMAT = "remat"
"""An operator's result is saved for the backward pass, or rematerialized there."""
ZERO = "zero"
"""A parameter, and with it its gradient and slots, may be split finer than its consumers use it; it is then gathered for
each use.
"""
ACCUMULATE = "accumulate"
"""A training step takes its batch in several micro-batches, where the memory limit asks for that; see
:mod:`...sharding.micro_batches`.
"""
STAGES = "stages"
"""The model is cut into stages, each on devices of its own, where several numbers of stages are asked for; see
:mod:`...sharding.stages`.
"""
CHOICES = (REUSE, REMAT, ZERO, ACCUMULATE, STAGES)


@dataclass(frozen=True, slots=True)
class Choices:
    """The choices that every Problem may have; :meth:`.ProblemBuilder.build_rematerializing` adds rematerialization."""

    reuse: bool = False
    zero: bool = True


def checked_choices(names: object) -> frozenset[str]:
    """Return the choices that a search shall do without, as a user named them.

    Raises:
        InputError: the names aren't a list, or one of them is no choice.
    """
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InputError(f"without= takes a list of choices, such as ['{REUSE}'], got {short(names)}")
    choices = tuple(names)
    for name in choices:
        if name not in CHOICES:
            raise InputError(f"unknown choice {short(name)}; a search can do without {', '.join(map(repr, CHOICES))}")
    return frozenset(choices)
