"""End a wait between ranks that has lasted longer than ``TENSOROPT_TIMEOUT`` without a reason.

A thread of each rank (:mod:`...runtime.failures.watching`) looks once a second at what the rank does. It also answers the
questions of other ranks: how many collectives the rank has begun, which one it is in, where it is, and for how long it has
made no progress. A rank that waits asks the others; :func:`verdict` decides from their answers whether the wait is over:

    others do long work of TensorOpt's (search, capture, save, ...) and progress   wait on
    one doesn't answer, or is in the user's code, or stands still, for the timeout  end all, and name it
    all have come, or wait as well, but for something else                        end all, and name both calls
    the same, each in another of the user's calls than this rank, for DEADLOCK_S  end all, and name the calls
    this rank exchanges values, and all others wait in steps, for MISMATCH_S      end all, and name the calls
    all have come to the same                                                     end all: the connection is slow

A rank may be in one collective of each of two *chains* at once. The collectives of a chain have one order on all ranks, but
the two chains together have none. So collectives are counted by chain, and compared with those of the same chain.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import gt
from typing import Any, NamedTuple

from ..errors import InputError

TIMEOUT, DEFAULT_TIMEOUT_S = "TENSOROPT_TIMEOUT", 600.0
ANSWER_S = 4.0
"""The least time that a question stays open before its rank counts as silent: a few times the interval of looks."""

DEADLOCK_S = 60.0
"""A shorter wait than the timeout ends all ranks where the others wait as well, in other calls of the user's."""
MISMATCH_S = 20.0
"""A wait of this length does where this rank exchanges values, and the others wait in steps that have no such exchange."""

CRITICAL, OVERLAPPABLE = CHAINS = range(2)
"""The chains: critical-path collectives, which another part of the step waits for, and overlappable ones.

Only updates wait for overlappable collectives. Where these have no chain of their own, they count as critical, too.
"""


def timeout_s() -> float:
    """Return the timeout that ``TENSOROPT_TIMEOUT`` sets, in seconds; ``inf`` means to wait for ever.

    Raises:
        InputError: the value isn't a number, or isn't above 0.
    """
    text = os.environ.get(TIMEOUT, str(DEFAULT_TIMEOUT_S))
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise InputError(f"{TIMEOUT} is how many seconds a rank waits for others, a number above 0, got {text!r}")
    return seconds


@dataclass
class ChainState:
    """The collectives of one chain that this rank is in, and since when; written by the thread that calls them.

    Attributes:
        what: the collectives, and the operator that they are for.
        since_s: when they began, by the monotonic clock; None outside of collectives.
        may_compute: whether this rank may be computing instead of waiting: then its wait counts only if another rank hasn't
            come.
        is_exchange: whether Python exchanges values; else a step's operators do.
    """

    what: str = ""
    since_s: float | None = None
    may_compute: bool = False
    is_exchange: bool = False

    def begin(self, what: str, may_compute: bool = False, is_exchange: bool = False) -> None:
        self.what, self.may_compute, self.is_exchange = what, may_compute, is_exchange
        self.since_s = time.monotonic()

    def end(self) -> None:
        self.since_s = None

    @contextmanager
    def within(self, what: str, may_compute: bool = False, is_exchange: bool = False) -> Iterator[None]:
        """Return a context of a wait; after it the one around it goes on, if there is one."""
        around = vars(self).copy()
        self.begin(what, may_compute, is_exchange)
        try:
            yield
        finally:
            vars(self).update(around)


def tell_of(target: object, state: ChainState, names: Iterable[str]) -> None:
    """Wrap methods of one object, by name, so that ``state`` shows each call.

    Only these methods are wrapped: the calls of steps, which note more, pay nothing for it.
    """
    for name in names:
        setattr(target, name, _telling(getattr(target, name), state, name))


def _telling(method: Callable[..., Any], state: ChainState, name: str) -> Callable[..., Any]:
    def telling(*arguments: Any, **named: Any) -> Any:
        with state.within(name):
            return method(*arguments, **named)

    return telling


class RankReport(NamedTuple):
    """A rank's report about itself.

    A rank for which the plan has no work has begun fewer collectives, and nobody waits for it.

    Attributes:
        begun: how many collectives it has begun, by chain.
        what: which one it is in, by chain; "" if none.
        is_at_work: whether it has work, and hasn't come to its end.
        idle_s: for how long it has made no progress: waited, run the user's code, or stood still.
        where: where it is (:class:`~tensoropt.common.source_lines.CodeLocation` as text).
        call: the call of TensorOpt that it is in.
        is_exchange: whether that exchanges values outside of steps.
    """

    begun: tuple[int, ...]
    what: tuple[str, ...]
    is_at_work: bool = True
    idle_s: float = math.inf
    where: str = ""
    call: str = ""
    is_exchange: bool = False

    @property
    def waits_in(self) -> str:
        return " and in ".join(filter(None, self.what))


@dataclass(frozen=True, slots=True)
class Report:
    """All that is known of another rank.

    Attributes:
        answer: its last answer, if any.
        is_new: whether that came after the last question.
        silent_s: for how long it has left a question open, or hasn't been heard; None if it isn't silent.
        last_call: the last call that it is known to have been in.
    """

    answer: RankReport | None
    is_new: bool = True
    silent_s: float | None = None
    last_call: str = ""


@dataclass(frozen=True, slots=True)
class LongWait:
    """A wait that has lasted for the timeout: its rank, its chain, its length, and the waiting rank's own answer."""

    rank: int
    chain: int
    seconds: float
    own: RankReport
    may_compute: bool = False


def verdict(waited: LongWait, reports: Mapping[int, Report], timeout_s: float, is_deadlock_only: bool = False) -> str | None:
    """Return the sentence that ends all ranks, or None while there is a reason to wait on (or, if asked, no deadlock)."""
    missing, differing, is_over, is_excused, is_deadlock = [], [], False, False, not waited.may_compute
    own, chain = waited.own, waited.chain
    for rank, report in sorted(reports.items()):
        answer = report.answer
        if answer is not None and not answer.is_at_work:
            continue
        # A rank in another of the user's calls waits for this one; one that is behind may just have a long message.
        is_deadlock &= answer is not None and _waits_elsewhere(answer, waited)
        if report.silent_s is not None:
            missing.append(silent(rank, report))
            is_over = True
        elif answer is None or not report.is_new or answer.idle_s < timeout_s:
            is_excused = True
        elif answer.begun[chain] < own.begun[chain]:
            missing.append(f"rank {rank} hasn't come to it and has been {_doing(answer)} for {answer.idle_s:.0f} s")
            # A rank that waits itself isn't the cause: it waits for another rank.
            is_over |= not answer.waits_in
        elif _differs(answer, own, chain):
            differing.append(f"rank {rank} is {_doing(answer)}")
    if is_excused and not is_over:
        return None
    causes = missing or differing
    if (not causes and waited.may_compute) or (is_deadlock_only and not (causes and is_deadlock)):
        return None
    cause = "; ".join(causes) or "all ranks have come to it, so the connection between them is what is slow"
    call = f", in {own.call}" if own.call else ""
    return (
        f"rank {waited.rank} has waited for {waited.seconds:.0f} s in {own.what[chain]}{call}: {cause}. All ranks must make "
        f"the same calls{'' if is_deadlock_only else f'; {TIMEOUT}=SECONDS lets ranks wait for longer'}"
    )


def silent(rank: int, report: Report) -> str:
    """Return the text about a rank that doesn't answer, with its last known place."""
    place = _doing(report.answer) if report.answer is not None else f"in {report.last_call}" if report.last_call else ""
    return f"rank {rank} hasn't answered for {report.silent_s:.0f} s{'; it was last known ' if place else ''}{place}"


def _doing(answer: RankReport) -> str:
    if not answer.waits_in:
        return answer.where
    return f"in {answer.waits_in}{f', in {answer.call}' if answer.call else ''}"


def _differs(answer: RankReport, own: RankReport, chain: int) -> bool:
    """Return whether a rank is elsewhere, though it has begun as many collectives.

    It is in another collective, or in none, or has gone on to another call.
    """
    both = ((report.begun[chain], report.what[chain], _name(report.call)) for report in (answer, own))
    return next(both) != next(both)


def _waits_elsewhere(answer: RankReport, waited: LongWait) -> bool:
    """Return whether a rank that isn't behind waits too, in a step while this one exchanges, or in another user's call."""
    own, is_level = waited.own, answer.begun[waited.chain] == waited.own.begun[waited.chain]
    if own.is_exchange and not answer.is_exchange and answer.waits_in:
        return is_level or any(map(gt, answer.begun, own.begun))  # of stages, too, only what all ranks call is counted
    is_long = min(waited.seconds, answer.idle_s) >= DEADLOCK_S
    return bool(answer.waits_in) and is_level and is_long and _name(answer.call) != _name(own.call)


def _name(call: str) -> str:
    return call.partition(" at ")[0]
