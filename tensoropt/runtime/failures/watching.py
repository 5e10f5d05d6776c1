"""Watch a rank from a thread: what the rank is in, whether it makes progress, and which ranks keep it waiting.

The thread never waits for a message, so that a rank in a long computation still answers the others. Progress is seen from
outside, and costs a step nothing. A rank has made progress if it has begun a collective since the last look, or if it is in
TensorOpt's code and that has moved on to other lines or has computed. In the user's code only a collective counts. That code
may run in another thread, which makes the data that TensorOpt waits for.

TensorOpt computes in the main thread and in threads of TensorFlow's own. What other threads of Python compute is the user's.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from types import FrameType
from typing import Any, Protocol

from ...common.process.watchdog import (
    ANSWER_S,
    CHAINS,
    MISMATCH_S,
    ChainState,
    LongWait,
    RankReport,
    Report,
    silent,
    verdict,
)
from ...common.source_lines import CodeLocation, called_back_line, code_location, is_reading
from .ending import Ending

QUESTION_TAG, ANSWER_TAG = 2, 3
LEAST_CPU = 0.01
"""The least share of a core that a process takes which computes, reads or writes; one that stands still takes none."""
_FRAMES = 30
ASKED_AFTER = 0.25
"""The share of the timeout after which a waiting rank begins to ask the others, and at which it repeats its questions."""


class WatchedRank(Protocol):
    """A rank as those see it that watch it and end it (:class:`~tensoropt.runtime.ranks.Processes`)."""

    ending: Ending | None
    rank: int
    size: int
    waiting: tuple[ChainState, ...]
    last_calls: dict[int, str]

    @property
    def collectives_begun(self) -> tuple[int, ...]: ...


class ThreadProgress:
    """The time for which this process's main thread has made no progress. One other thread must look at it repeatedly."""

    def __init__(self, thread: threading.Thread | None = None) -> None:
        self._thread = (thread or threading.main_thread()).ident
        self._begun: tuple[int, ...] = ()
        self._at: tuple[tuple[int, int], ...] = ()
        self._cpu_s = self._looked_s = 0.0
        self._others_cpu_s: dict[int, float] = {}
        self._since_s = time.monotonic()
        self.where = CodeLocation()

    def look(self, counts: tuple[int, ...], waits_since_s: float | None) -> float:
        """Return for how many seconds there was no progress; for a rank that waits, at most since its wait began."""
        now_s = time.monotonic()
        frames = sys._current_frames()
        frame = frames.pop(self._thread or 0, None)
        self.where, instructions = code_location(frame), _instructions(frame)
        if is_reading(frame):
            line = next(filter(None, map(called_back_line, frames.values())), "")
            self.where = replace(self.where, line=line, is_users=True) if line else self.where
        has_computed = self._computed_s() > LEAST_CPU * (now_s - self._looked_s)
        if waits_since_s is not None:
            self._since_s = max(self._since_s, waits_since_s)
        elif counts != self._begun or (not self.where.is_users and (instructions != self._at or has_computed)):
            self._since_s = now_s
        self._begun, self._at, self._looked_s = counts, instructions, now_s
        return now_s - self._since_s

    def _computed_s(self) -> float:
        """Return the CPU time since the last call that isn't of other threads of Python."""
        cpu_s, others_cpu_s = time.process_time(), self._cpu_s_of_others()
        growth_s = sum(now_s - self._others_cpu_s.get(thread, 0.0) for thread, now_s in others_cpu_s.items())
        computed_s = cpu_s - self._cpu_s - growth_s
        self._cpu_s, self._others_cpu_s = cpu_s, others_cpu_s
        return computed_s

    def _cpu_s_of_others(self) -> dict[int, float]:
        """Return the CPU time of each thread, by its system's number, that Python has started and this doesn't look at."""
        times_s = {}
        for thread in threading.enumerate():
            # TensorFlow's threads that have called Python are there as dummies.
            if thread.ident != self._thread and thread.native_id and not isinstance(thread, threading._DummyThread):
                # Linux's clock of a thread's CPU time. pthread_getcpuclockid would crash for a thread that has ended.
                with contextlib.suppress(OSError):  # it has ended
                    times_s[thread.native_id] = time.clock_gettime(~thread.native_id << 3 | 6)
        return times_s


def _instructions(frame: FrameType | None) -> tuple[tuple[int, int], ...]:
    """Return the instructions that a thread is at, in its innermost functions."""
    instructions: list[tuple[int, int]] = []
    while frame is not None and len(instructions) < _FRAMES:
        instructions.append((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    return tuple(instructions)


def _deadlock_s(timeout_s: float) -> float:
    """Return after how many seconds a deadlock may end all ranks: never, where they are to wait for ever."""
    return min(MISMATCH_S, timeout_s) if timeout_s < math.inf else math.inf


class Questions:
    """The questions between ranks: this rank asks the others and answers them. One thread calls :meth:`look` repeatedly.

    Args:
        comm: a communicator (mpi4py) whose messages with these tags are used for nothing else.

    Attributes:
        up_since_s: since when this process has looked without a break.
    """

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self._others = [rank for rank in range(comm.size) if rank != comm.rank]
        self._sent: list[Any] = []  # requests, which must live until they are done
        self._answers: dict[int, RankReport] = {}
        self._heard_s: dict[int, float] = {}
        self._asked_s: dict[int, float] = {}  # questions that are open
        self._looked_s = self.up_since_s = time.monotonic()

    def look(self, own_report: RankReport) -> None:
        """Answer the questions since the last look, and receive answers."""
        from mpi4py import MPI

        now_s = time.monotonic()
        if now_s - self._looked_s > ANSWER_S:
            # This process itself was stopped: the answers that it has missed say nothing about the others.
            self.up_since_s = now_s
        self._looked_s = now_s
        self._sent = [request for request in self._sent if not request.Test()]
        status = MPI.Status()
        while self.comm.iprobe(source=MPI.ANY_SOURCE, tag=QUESTION_TAG, status=status):
            rank = status.Get_source()
            self.comm.recv(source=rank, tag=QUESTION_TAG)
            self._sent.append(self.comm.isend(tuple(own_report), dest=rank, tag=ANSWER_TAG))
        while self.comm.iprobe(source=MPI.ANY_SOURCE, tag=ANSWER_TAG, status=status):
            rank = status.Get_source()
            self._answers[rank] = RankReport(*self.comm.recv(source=rank, tag=ANSWER_TAG))
            self._heard_s[rank] = now_s
            self._asked_s.pop(rank, None)

    def ask(self, waits_since_s: float, timeout_s: float) -> None:
        """Ask the other ranks once the wait has lasted for a while. Ranks with an open question aren't asked again."""
        now_s = time.monotonic()
        waited_s, often_s = now_s - waits_since_s, min(ASKED_AFTER * timeout_s, _deadlock_s(timeout_s))
        if waited_s < often_s:
            return
        for rank in self._others:
            is_due = waited_s >= timeout_s or now_s - self._heard_s.get(rank, 0.0) >= often_s
            if rank not in self._asked_s and is_due:
                self._sent.append(self.comm.isend(None, dest=rank, tag=QUESTION_TAG))
                self._asked_s[rank] = now_s

    def reports(self, waits_since_s: float, timeout_s: float, last_calls: Mapping[int, str]) -> dict[int, Report]:
        """Return what is known of each other rank."""
        now_s, result = time.monotonic(), {}
        since_s = max(waits_since_s, self.up_since_s)
        for rank in self._others:
            heard_s, asked_s = self._heard_s.get(rank, 0.0), self._asked_s.get(rank)
            silent_s = now_s - max(since_s, heard_s)
            is_open = asked_s is not None and now_s - max(asked_s, self.up_since_s) >= ANSWER_S
            is_silent = is_open and silent_s >= timeout_s
            # After the timeout ranks are asked at every look.
            is_new = heard_s - waits_since_s >= timeout_s
            result[rank] = Report(self._answers.get(rank), is_new, silent_s if is_silent else None, last_calls.get(rank, ""))
        return result


class RankWatch:
    """The watch over one rank."""

    def __init__(self, processes: WatchedRank, comm: Any, timeout_s: float) -> None:
        self.processes, self.timeout_s = processes, timeout_s
        self.questions, self.progress = Questions(comm), ThreadProgress()

    def look(self, ended_s: float | None) -> str | None:
        """Answer the other ranks, and ask them if this rank waits.

        Args:
            ended_s: since when this rank, if it has ended, waits for the end of the others; else None.

        Returns:
            The message that ends all ranks if this rank waits in vain; else None.
        """
        waits = [(wait.what, wait.since_s) for wait in self.processes.waiting]
        starts_s = [since_s for _, since_s in waits if since_s is not None]
        counts = self.processes.collectives_begun
        idle_s = self.progress.look(counts, max(starts_s, default=None))
        place = self.progress.where
        collectives = tuple(collective if since_s is not None else "" for collective, since_s in waits)
        is_exchange = any(wait.is_exchange and wait.since_s is not None for wait in self.processes.waiting)
        own_report = RankReport(counts, collectives, ended_s is None, idle_s, str(place), place.call, is_exchange)
        self.questions.look(own_report)
        if ended_s is not None:
            return self._after_the_end(ended_s)
        if starts_s:
            self.questions.ask(min(starts_s), self.timeout_s)
        for chain in CHAINS:
            sentence = self._wait_in(chain, waits[chain][1], own_report)
            if sentence is not None:
                return sentence
        return None

    def _wait_in(self, chain: int, since_s: float | None, own_report: RankReport) -> str | None:
        if since_s is None:
            return None
        wait = self.processes.waiting[chain]
        seconds = time.monotonic() - max(since_s, self.questions.up_since_s)
        is_early = seconds < self.timeout_s
        limit_s = _deadlock_s(self.timeout_s) if is_early else self.timeout_s
        if seconds < limit_s:
            return None
        long_wait = LongWait(self.processes.rank, chain, seconds, own_report, wait.may_compute)
        reports = self.questions.reports(since_s, limit_s, self.processes.last_calls)
        sentence = verdict(long_wait, reports, limit_s, is_early)
        return sentence if wait.since_s == since_s else None

    def _after_the_end(self, ended_s: float) -> str | None:
        """Return the message that ends all ranks if another one is stopped.

        Running ranks may take any time until they end, but a stopped one never ends.
        """
        self.questions.ask(ended_s, self.timeout_s)
        reports = self.questions.reports(ended_s, self.timeout_s, self.processes.last_calls)
        for rank, report in reports.items():
            if report.silent_s is not None:
                return f"rank {self.processes.rank} has ended and waits for the others: {silent(rank, report)}"
        return None
