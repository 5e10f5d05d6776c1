"""Start a run's ranks, and start them again from the newest checkpoint when they end before they are done.

Starts, and what one leaves for the next, in the folder of the checkpoints::

    .run.lock     held as long as the command lives, so that two runs never share a folder
    run.json      the seed that the scripts' random numbers begin with, and whether the run has finished
    fit-0/        the checkpoints (:mod:`.run_folder`)
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common.errors import InputError, describe
from ..common.files import check_writable, write_json
from ..common.lock import Lock
from ..runtime import notes
from ..runtime.mpirun import Leaving, supervise
from .attempts import Attempt, table, why_not_again

_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class Survival:
    """The options of ``tensoropt run`` that say how a run survives.

    Attributes:
        n_ranks: the ranks of the first start.
        checkpoint: the folder of the checkpoints; None if the script alone saves and loads.
        every, keep: as for :class:`..survive.callback.Survive`.
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
        command: returns the command line that starts so many ranks.
        reads: whether ranks have this process's standard input.
    """

    def __init__(self, options: Survival, command: Callable[[int], Sequence[str]], reads: bool) -> None:
        self.options, self._command, self._reads = options, command, reads
        self.attempts: list[Attempt] = []
        self._dead_until_s: list[float] = []
        self._least = options.min_ranks

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
            found = {"exit_code": code, "attempts": [each.as_json() for each in self.attempts]}
            write_json(self.options.json, found, "the table of attempts")
        return code

    @contextmanager
    def _folder(self) -> Iterator[dict[str, str] | None]:
        """Hold the run's folder, and yield the environment of its ranks; None if the run had finished."""
        folder = self.options.checkpoint
        if folder is None:
            yield {}
            return
        with _held(folder):
            if self.options.fresh:
                _put_aside(folder)
            about = _about(folder)
            if about["finished"]:
                _say(f"the run in '{folder}' had finished; --fresh starts it from its beginning")
                yield None
                return
            write_json(folder / "run.json", about, "the run's seed")
            yield {
                notes.CHECKPOINT: str(folder.absolute()),
                notes.EVERY: self.options.every,
                notes.KEEP: str(self.options.keep),
                notes.SEED: str(about["seed"]),
                notes.LEAVING_CODE: str(self.options.leaving_code),
            }
            if self.attempts and self.attempts[-1].exit_code == 0:
                write_json(folder / "run.json", {**about, "finished": True}, "the run's end")

    def _until_done(self, environ: Mapping[str, str]) -> int:
        leaving = Leaving(self.options.grace_s)
        while True:
            n_ranks = self._ranks_left(leaving)
            if n_ranks is None:
                last = self.attempts[-1].exit_code
                return self._code_of_request(leaving) if leaving.asked else last
            attempt = self._start(n_ranks, environ, leaving)
            self.attempts.append(attempt)
            if attempt.exit_code == 0 and self.options.checkpoint is not None and not attempt.last_step:
                _say("the script has trained in no fit, or in such as had ended, so that nothing was saved")
            if attempt.exit_code == 0 or leaving.is_interrupted:
                return attempt.exit_code
            if leaving.asked or attempt.has_left:
                return self._code_of_request(leaving)
            if attempt.is_refused and n_ranks < self.options.n_ranks:
                _say(f"there is no plan for -n {n_ranks}; it waits for more")
                self._least = n_ranks + 1
                continue
            why_not = why_not_again(self.attempts, self.options.restarts, self.options.checkpoint is not None)
            if why_not is not None:
                if self.options.restarts and not attempt.is_refused:
                    _say(f"the ranks ended ({attempt.why}), and aren't started again: {why_not}")
                return attempt.exit_code
            self._note_dead(attempt)
            self._say_again(attempt)

    def _start(self, n_ranks: int, environ: Mapping[str, str], leaving: Leaving) -> Attempt:
        begun_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="tensoropt-notes-") as folder:
            own = {notes.NOTES: folder, notes.ATTEMPT: str(len(self.attempts))}
            leaving.has_begun = lambda: any(Path(folder).glob(f"{notes.BEGUN}.*"))
            code = supervise(self._command(n_ranks), {**environ, **own}, self._reads, leaving)
            return Attempt(n_ranks, code, notes.read_notes(Path(folder)), time.monotonic() - begun_s)

    def _code_of_request(self, leaving: Leaving) -> int:
        """Return the code to end with after a request to stop: whether another start goes on from a checkpoint."""
        last, folder = self.attempts[-1], self.options.checkpoint
        if leaving.asked and not last.has_left:
            _say(f"interrupted by {signal.Signals(leaving.asked).name}; all ranks have ended")
        if last.has_left or (folder is not None and any(folder.glob("fit-*/step-*.index"))):
            return self.options.leaving_code
        return 128 + leaving.asked if leaving.asked else last.exit_code

    # Ranks

    def _note_dead(self, attempt: Attempt) -> None:
        if self._least < self.options.n_ranks:
            self._dead_until_s += [time.monotonic() + self.options.cooldown_s] * len(attempt.dead)

    def _ranks_left(self, leaving: Leaving) -> int | None:
        """Return how many ranks to start, once there are enough; None if that takes too long, or a request to stop came."""
        until_s, has_said = time.monotonic() + self.options.wait_s, False
        while True:
            self._dead_until_s = [each for each in self._dead_until_s if each > time.monotonic()]
            n_left = self.options.n_ranks - len(self._dead_until_s)
            if n_left >= self._least:
                return n_left
            if not has_said:
                _say(f"{n_left} of {self.options.n_ranks} ranks are left, {self._least} are needed; it waits for more")
                has_said = True
            if time.monotonic() > until_s:
                _say(f"still {n_left} ranks are left after {self.options.wait_s:.0f} s, and {self._least} are needed")
                return None
            if leaving.wait(_LOOK_S):
                return None

    def _say_again(self, attempt: Attempt) -> None:
        number, n_left = len(self.attempts), self.options.n_ranks - len(self._dead_until_s)
        is_kept = self.options.checkpoint is not None
        where = "from its newest checkpoint" if is_kept else "from its beginning, where the script itself may load"
        lost = f"; steps to take again: {attempt.lost_steps}" if attempt.lost_steps else ""
        _say(f"the ranks ended ({attempt.why}); restart {number} of {self.options.restarts} with -n {n_left} {where}{lost}")


def _say(text: str) -> None:
    print(f"tensoropt: {text}", file=sys.stderr, flush=True)


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold a folder, which no other run may use meanwhile.

    Raises:
        InputError: another one does, or it can't be written.
    """
    lock, expected = Lock(folder / ".run.lock"), "a folder for each run"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        holder = lock.acquire()
        got = f"another run in it, of {holder}"
    except OSError as error:
        holder, expected = "", "a folder that can be written"
        got = f"{error.strerror} for '{error.filename}'"
    if holder is not None:
        raise InputError(describe(f"a run can't be kept in '{folder}'", got=got, expected=expected))
    try:
        yield
    finally:
        lock.release()


def _about(folder: Path) -> dict[str, Any]:
    """Return what the folder knows of its run, with a seed for a new one."""
    file = folder / "run.json"
    try:
        found = json.loads(file.read_text())
        return {"seed": int(found["seed"]), "finished": bool(found["finished"])}
    except FileNotFoundError:
        return {"seed": int.from_bytes(os.urandom(4), "little"), "finished": False}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            describe(f"'{file}' is damaged", got=f"{type(error).__name__}: {error}", advice="--fresh puts it aside")
        ) from error


def _put_aside(folder: Path) -> None:
    """Move what a folder has into another one within it."""
    old = [each for each in folder.iterdir() if each.name == "run.json" or each.name.startswith("fit-")]
    if not old:
        return
    aside = next(path for i in range(1, sys.maxsize) if not (path := folder / f"before-{i}").exists())
    aside.mkdir()
    for each in old:
        each.rename(aside / each.name)
    _say(f"the run that '{folder}' had is put aside, in '{aside}'")
