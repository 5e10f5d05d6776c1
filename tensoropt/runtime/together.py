"""Run an action that may fail on some ranks only, such that it then fails on all, with one message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..common.errors import TensorOptError
from .ranks import Processes

Value = TypeVar("Value")


def together(processes: Processes, action: Callable[[], Value]) -> Value:
    """Run an action on every rank and wait for all; return this rank's result.

    The action must not communicate. Its TensorOptError on any rank becomes the error of the lowest such rank on all ranks.
    Other exceptions are raised on their own rank only, and end the run.
    """
    own_error: TensorOptError | None = None
    try:
        value = action()
    except TensorOptError as error:
        own_error = error
    failures = processes.gather(None if own_error is None else (type(own_error), str(own_error)))
    for failure in failures:
        if failure is not None:
            kind, sentence = failure
            raise kind(sentence) from own_error
    return value


def on_rank_0(processes: Processes, action: Callable[[], Value]) -> Value:
    """Run an action on rank 0. Return its result (picklable), or raise its TensorOptError, on every rank."""
    answer: Any = None
    if processes.rank == 0:
        try:
            answer = action()
        except TensorOptError as error:
            answer = error
    # Gathered, so that a call that only some ranks make meets what the others exchange, and is named.
    answers = processes.gather(answer, "what rank 0 computes for all")
    answer = answer if processes.rank == 0 else answers[0]
    if isinstance(answer, TensorOptError):
        raise answer
    return answer
