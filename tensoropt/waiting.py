"""Waiting too long: a rank that finds itself in a collective for longer than ``TENSOROPT_TIMEOUT`` asks who is missing.

A thread of each rank looks once a second. It answers what other ranks ask (how many collectives this one has begun, and in
which it is), and asks itself when this rank's collective has lasted too long. Who has begun fewer collectives hasn't come to
this one; who doesn't answer is stopped, or its machine can't be reached. The messages go over the communicator of the
:class:`~tensoropt.failures.Ending`, so they meet nothing else, and cost nothing until they are needed.

A rank may be in a collective of each of two *chains* at once. Each chain has one order on all ranks, but not both together:
so collectives are counted by chain, and compared with those of the same chain.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .errors import InputError

TIMEOUT, DEFAULT_TIMEOUT_S = "TENSOROPT_TIMEOUT", 600.0
ANSWER_S = 4.0
"""How long to wait for answers: a few times the interval at which ranks look for questions."""
_NAP_S = 0.02
FAREWELL_TAG, _QUESTION_TAG, _ANSWER_TAG = 1, 2, 3

URGENT, TRAILING = CHAINS = range(2)
"""Collectives that something else of the step waits for, and those that only updates wait for where these have a chain of
their own; all others count as urgent."""


def timeout_s() -> float:
    """What ``TENSOROPT_TIMEOUT`` says, in seconds; ``inf`` for ever.

    Raises:
        InputError: it is no number, or not above 0.
    """
    given = os.environ.get(TIMEOUT, str(DEFAULT_TIMEOUT_S))
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise InputError(f"{TIMEOUT} is how many seconds a rank waits in a collective, a number above 0, got {given!r}")
    return seconds


@dataclass
class Waiting:
    """In which collectives of a chain this rank is, and since when; written by the thread that calls them.

    Attributes:
        what: collectives and the operator that they are for.
        since_s: by the monotonic clock; None outside of collectives.
        may_compute: whether this rank may be computing, and not waiting: then only a rank that hasn't come tells.
    """

    what: str = ""
    since_s: float | None = None
    may_compute: bool = False

    def begin(self, what: str, may_compute: bool = False) -> None:
        self.what, self.may_compute = what, may_compute
        self.since_s = time.monotonic()

    def end(self) -> None:
        self.since_s = None

    @property
    def is_under_way(self) -> bool:
        return self.since_s is not None

    def late_since_s(self, timeout_s: float) -> float | None:
        """Since when this rank is in what it is in, if that is too long; else None."""
        since_s = self.since_s
        return since_s if since_s is not None and time.monotonic() - since_s >= timeout_s else None


class Answer(NamedTuple):
    """By chain how many collectives a rank has begun and what it is in ("" if none), and whether it is at work.

    A rank for which the plan has no work has begun fewer, and nobody waits for it.
    """

    begun: tuple[int, ...]
    what: tuple[str, ...]
    is_at_work: bool = True


class Questions:
    """Asks the other ranks, and answers them, from one thread of each.

    Args:
        comm: a communicator (mpi4py) whose messages with these tags are used for nothing else.
    """

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self._sent: list[Any] = []  # requests, which must live until they are done

    def answer(self, own: Answer) -> None:
        """Answer what was asked since the last call."""
        for rank, _ in self._received(_QUESTION_TAG):
            self._sent.append(self.comm.isend(tuple(own), dest=rank, tag=_ANSWER_TAG))

    def ask(self, own: Answer) -> dict[int, Answer]:
        """What the other ranks answer, by rank; those who don't are left out. Answers them meanwhile."""
        others = [rank for rank in range(self.comm.size) if rank != self.comm.rank]
        self._sent += [self.comm.isend(None, dest=rank, tag=_QUESTION_TAG) for rank in others]
        answers: dict[int, Answer] = {}
        deadline = time.monotonic() + ANSWER_S
        while len(answers) < len(others) and time.monotonic() < deadline:
            self.answer(own)
            answers |= {rank: Answer(*answer) for rank, answer in self._received(_ANSWER_TAG)}
            time.sleep(_NAP_S)
        return answers

    def _received(self, tag: int) -> Iterator[tuple[int, Any]]:
        """(rank, message) of what has come with a tag."""
        from mpi4py import MPI

        status = MPI.Status()
        while self.comm.iprobe(source=MPI.ANY_SOURCE, tag=tag, status=status):
            source = status.Get_source()
            yield source, self.comm.recv(source=source, tag=tag)


def missing_ranks(rank: int, chain: int, own: Answer, answers: Mapping[int, Answer], size: int) -> list[str]:
    """Who hasn't come to the collective that this rank is in, of a chain, in words."""
    missing = []
    for other in range(size):
        answer = answers.get(other)
        if other == rank:
            continue
        if answer is None:
            missing.append(f"rank {other} doesn't answer")
        elif answer.is_at_work and answer.begun[chain] < own.begun[chain]:
            where = f"is in {' and in '.join(filter(None, answer.what))}" if any(answer.what) else "is in no collective"
            missing.append(f"rank {other} hasn't come to it and {where}")
    return missing


def too_long(rank: int, waited_s: float, what: str, missing: Sequence[str]) -> str:
    """The sentence about a collective that lasts too long."""
    who = "; ".join(missing) or "all ranks have come to it, so the connection between them is what is slow"
    return (
        f"rank {rank} has waited for {waited_s:.0f} s in {what}: {who}. All ranks must run the same steps; "
        f"{TIMEOUT}=SECONDS lets ranks wait for longer"
    )
