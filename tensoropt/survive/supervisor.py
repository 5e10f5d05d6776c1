"""Start a run's ranks, and start them again from the newest checkpoint when they end before they are done.

Starts, and what one leaves for the next, in the folder of the checkpoints::

    .run.lock     held as long as the command lives, so that two runs never share a folder
    run.json      the seed that the scripts' random numbers begin with, and whether the run has finished
    fit-0/        the checkpoints (:mod:`.run_folder`)
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common.errors import InputError, describe
from ..common.files import check_writable, needing_folder, write_json
from ..common.process.lock import Lock
from ..runtime.failures import notes
from ..runtime.failures.interruptions import say
from ..runtime.launch.hosts import Host, hosts_of_allocation
from ..runtime.launch.mpirun import Leaving, answers, supervise
from .attempts import Attempt, table, why_not_again

_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class Survival:
    """The options of ``tensoropt run`` that say how a run survives.

    Attributes:
        n_ranks: the ranks of the first start.
        watches: whether there may be as many as the hosts have slots, which are read again and again.
        checkpoint: the folder of the checkpoints; None if the script alone saves and loads.
        every, keep: as for :class:`.callback.Survive`.
        fresh: whether to begin at the beginning, with what the folder has put aside.
        restarts: how often ranks may be started again.
        min_ranks: the fewest ranks to start.
        wait_s: how long to wait for so many.
        cooldown_s: how long a rank that was killed isn't started again, if fewer are enough.
        grace_s: how long ranks may take to save and leave.
        leaving_code: the exit code if they have.
        json: the file for the table of attempts.
    """

    n_ranks: int
    watches: bool
    checkpoint: Path | None
    every: str
    keep: int
    fresh: bool
    restarts: int
    min_ranks: int
    wait_s: float
    cooldown_s: float
    grace_s: float
    leaving_code: int
    json: Path | None


class Supervisor:
    """The starts of one run's ranks.

    Args:
        options: how it survives.
        command: returns the command line that starts so many ranks on hosts in an environment.
        hosts: returns the hosts, which may change from start to start; none for this one.
        reads: whether ranks have this process's standard input.
    """

    def __init__(
        self, options: Survival, command: Callable[..., Sequence[str]], hosts: Callable[[], Sequence[Host]], has_input: bool
    ) -> None:
        self.options, self._command, self._hosts, self._has_input = options, command, hosts, has_input
        self.attempts: list[Attempt] = []
        self._out: list[tuple[float, Host]] = []
        """Hosts, or this one with fewer slots, and until when they are left out."""
        self._refused: set[int] = set()
        """Numbers of ranks for which there is no plan."""
        self._known: Sequence[Host] = ()
        self._n_moves = 0

    def run(self, environ: Mapping[str, str]) -> int:
        """Run the script to its end, and return the exit code.

        Raises:
            InputError: the folder can't be used, or another run uses it.
        """
        if self.options.json is not None:
            check_writable(self.options.json, "table of attempts")
        with self._folder() as own:
            code = self._until_done({**environ, **own}) if own is not None else 0
        if len(self.attempts) > 1:
            print(table(self.attempts), file=sys.stderr, flush=True)
        if self.options.json is not None:
            summary = {"exit_code": code, "attempts": [attempt.as_json() for attempt in self.attempts]}
            write_json(self.options.json, summary, "the table of attempts")
        return code

    @contextlib.contextmanager
    def _folder(self) -> Iterator[dict[str, str] | None]:
        """Hold the run's folder, and yield the environment of its ranks; None if the run had finished."""
        folder = self.options.checkpoint
        if folder is None:
            yield {}
            return
        with _hold(folder):
            if self.options.fresh:
                _put_aside(folder)
            record = _run_record(folder)
            if record["finished"]:
                say(f"the run in '{folder}' had finished; --fresh starts it from its beginning")
                yield None
                return
            write_json(folder / "run.json", record, "the run's seed")
            yield {
                notes.CHECKPOINT: str(folder.absolute()),
                notes.EVERY: self.options.every,
                notes.KEEP: str(self.options.keep),
                notes.SEED: str(record["seed"]),
                notes.LEAVING_CODE: str(self.options.leaving_code),
            }
            if self.attempts and self.attempts[-1].exit_code == 0:
                write_json(folder / "run.json", {**record, "finished": True}, "the run's end")

    def _until_done(self, environ: Mapping[str, str]) -> int:
        leaving = Leaving(self.options.grace_s)
        while True:
            n_ranks, hosts = self._ranks_left(leaving)
            if not n_ranks:
                last = self.attempts[-1].exit_code if self.attempts else 1
                return self._code_of_request(leaving) if leaving.asked else last
            attempt = self._start(n_ranks, hosts, environ, leaving)
            self.attempts.append(attempt)
            if attempt.exit_code == 0 and self.options.checkpoint is not None and not attempt.last_step:
                say("the script has trained in no fit, or in such as had ended, so that nothing was saved")
            if attempt.exit_code == 0 or leaving.is_interrupted:
                return attempt.exit_code
            if leaving.asked or (attempt.has_left and not leaving.has_moved):
                return self._code_of_request(leaving)
            if attempt.has_left:
                self._n_moves += 1
                say("there are other slots now: the ranks have saved, and start again")
                continue
            counts = {earlier.n_ranks for earlier in self.attempts[:-1]}
            if attempt.is_refused and counts and n_ranks not in counts:
                say(f"there is no plan for -n {n_ranks}; another number is tried")
                self._refused.add(n_ranks)
                continue
            most = self.options.restarts + self._n_moves
            why_not = why_not_again(self.attempts, most, self.options.checkpoint is not None)
            if why_not is not None:
                if self.options.restarts and not attempt.is_refused:
                    say(f"the ranks ended ({attempt.why}), and aren't started again: {why_not}")
                return attempt.exit_code
            self._leave_out(attempt, hosts)
            self._say_again(attempt)

    def _start(self, n_ranks: int, hosts: Sequence[Host], environ: Mapping[str, str], leaving: Leaving) -> Attempt:
        begun_s, shared = time.monotonic(), self.options.checkpoint if _are_several(hosts) else None
        with tempfile.TemporaryDirectory(prefix=".tensoropt-notes-", dir=shared) as folder:
            environ = {**environ, notes.NOTES: os.path.abspath(folder), notes.ATTEMPT: str(len(self.attempts))}
            leaving.begin(
                lambda: any(Path(folder).glob(f"{notes.BEGUN}.*")),
                lambda: self.options.watches and self._left() != (n_ranks, hosts),
            )
            code = supervise(self._command(n_ranks, hosts=hosts, environ=environ), environ, self._has_input, leaving)
            noted = notes.read_notes(Path(folder))
        return Attempt(n_ranks, code_with_hosts(code, hosts, noted), noted, time.monotonic() - begun_s)

    def _code_of_request(self, leaving: Leaving) -> int:
        """Return the code to end with after a request to stop: whether another start goes on from a checkpoint."""
        last, folder = self.attempts[-1], self.options.checkpoint
        if leaving.asked and not last.has_left:
            say(f"interrupted by {signal.Signals(leaving.asked).name}; all ranks have ended")
        if last.has_left or (folder is not None and any(folder.glob("fit-*/step-*.index"))):
            return self.options.leaving_code
        return 128 + leaving.asked if leaving.asked else last.exit_code

    # Ranks

    def _leave_out(self, attempt: Attempt, hosts: Sequence[Host]) -> None:
        """Leave out, for some time, hosts that don't answer, and ranks that were killed or the hosts that had them."""
        dead = attempt.dead if self.options.min_ranks < self.options.n_ranks else frozenset()
        of_rank = [host for host in hosts for _ in range(host.slots)]
        out = [Host("", len(dead))] if dead and not hosts else []
        for host in hosts:
            if any(of_rank[rank] == host for rank in dead) or not answers(host):
                say(f"host {host.name} is left out for {self.options.cooldown_s:.0f} s")
                out.append(host)
        self._out += [(time.monotonic() + self.options.cooldown_s, host) for host in out]

    def _left(self) -> tuple[int, list[Host]]:
        """Return how many ranks to start now, and the hosts for them."""
        self._out = [entry for entry in self._out if entry[0] > time.monotonic()]
        with contextlib.suppress(InputError) if self._known else contextlib.nullcontext():  # a file that is being written
            self._known = self._hosts()
        out, hosts = [host for _, host in self._out], [host for host in self._known if host.name]
        n_slots = sum(host.slots for host in self._known)
        remaining = [host for host in hosts if host.name not in {absent.name for absent in out}]
        most = n_slots if self.options.watches else self.options.n_ranks
        n_left = min(most, sum(host.slots for host in remaining)) if hosts else most - sum(host.slots for host in out)
        least = self.options.min_ranks
        return next((n for n in range(n_left, least - 1, -1) if n not in self._refused), min(n_left, least - 1)), remaining

    def _ranks_left(self, leaving: Leaving) -> tuple[int, list[Host]]:
        """Return how many ranks to start, once there are enough, and where; 0 if that takes too long, or a request came."""
        until_s, has_said, least = time.monotonic() + self.options.wait_s, False, self.options.min_ranks
        while True:
            n_left, hosts = self._left()
            if n_left >= least:
                return n_left, hosts
            if not has_said:
                say(f"{n_left} of {self.options.n_ranks} ranks are left, {least} are needed; it waits for more")
                has_said = True
            if time.monotonic() > until_s:
                say(f"still {n_left} ranks are left after {self.options.wait_s:.0f} s, and {least} are needed")
                return 0, []
            if leaving.wait(_LOOK_S):
                return 0, []

    def _say_again(self, attempt: Attempt) -> None:
        number, (n_left, _) = len(self.attempts) - self._n_moves, self._left()
        is_kept = self.options.checkpoint is not None
        where = "from its newest checkpoint" if is_kept else "from its beginning, where the script itself may load"
        lost = f"; steps to take again: {attempt.lost_steps}" if attempt.lost_steps else ""
        say(f"the ranks ended ({attempt.why}); restart {number} of {self.options.restarts} with -n {n_left} {where}{lost}")


def code_with_hosts(code: int, hosts: Sequence[Host], noted: Mapping[str, Any]) -> int:
    """Return mpirun's exit code; as it is 0 when a host is lost, that of a killed rank if notes or hosts say so."""
    is_cut_short = not {notes.BEGUN, notes.TERMINATED, notes.FAILED}.isdisjoint(noted)
    if code or not _are_several(hosts) or notes.DONE in noted or not (is_cut_short or not all(map(answers, hosts))):
        return code
    say("mpirun has lost a host")
    return 128 + signal.SIGKILL


def _are_several(hosts: Sequence[Host]) -> bool:
    """Return whether ranks run on hosts that are named, or on several of an allocation, which mpirun can lose."""
    return bool(hosts) or hosts_of_allocation() > 1


@contextlib.contextmanager
def _hold(folder: Path) -> Iterator[None]:
    """Hold a folder, which no other run may use meanwhile; raise InputError if another one does, or it can't be written."""
    lock, problem = Lock(folder / ".run.lock"), f"a run can't be kept in '{folder}'"
    with needing_folder(problem):
        folder.mkdir(parents=True, exist_ok=True)
        holder = lock.acquire()
    if holder is not None:
        raise InputError(describe(problem, got=f"another run in it, of {holder}", expected="a folder for each run"))
    try:
        yield
    finally:
        lock.release()


def _run_record(folder: Path) -> dict[str, Any]:
    """Return what the folder knows of its run, with a seed for a new one."""
    file = folder / "run.json"
    try:
        record = json.loads(file.read_text())
        return {"seed": int(record["seed"]), "finished": bool(record["finished"])}
    except FileNotFoundError:
        return {"seed": int.from_bytes(os.urandom(4), "little"), "finished": False}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            describe(f"'{file}' is damaged", got=f"{type(error).__name__}: {error}", advice="--fresh puts it aside")
        ) from error


def _put_aside(folder: Path) -> None:
    """Move what a folder has into another one within it."""
    old = [entry for entry in folder.iterdir() if entry.name == "run.json" or entry.name.startswith("fit-")]
    if not old:
        return
    aside = next(path for i in range(1, sys.maxsize) if not (path := folder / f"before-{i}").exists())
    aside.mkdir()
    for entry in old:
        entry.rename(aside / entry.name)
    say(f"the run that '{folder}' had is put aside, in '{aside}'")
