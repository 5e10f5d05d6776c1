"""What became of each start of a run's ranks, and whether another one is worth it."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..runtime.failures import notes

_HEADER = ("attempt", "ranks", "from fit:step", "to", "lost steps", "seconds", "ended by")
_MOST_TEXT = 80


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of a run's ranks.

    Attributes:
        n_ranks: how many ranks were started.
        exit_code: mpirun's exit code, 128 more than the number of a signal that ended it.
        noted: what the ranks have noted, by kind and rank.
        seconds: how long it took.
    """

    n_ranks: int
    exit_code: int
    noted: Mapping[str, Mapping[int, Any]]
    seconds: float

    @property
    def from_step(self) -> tuple[int, ...]:
        """The ``fit`` and the step at which training began; empty if none did."""
        return min((tuple(note["begun"]) for note in self.noted.get(notes.BEGUN, {}).values()), default=())

    @property
    def last_step(self) -> tuple[int, ...]:
        """The ``fit`` and the step that training came to, as far as ranks could say; empty if they came to none."""
        steps = [tuple(note["at"]) for kind in self.noted.values() for note in kind.values() if note["at"]]
        return max(steps, default=())

    @property
    def saved_step(self) -> tuple[int, ...]:
        """The ``fit`` and the step that were saved last; empty without a save."""
        return max((tuple(note["saved"]) for note in self.noted.get(notes.SAVED, {}).values()), default=())

    @property
    def has_left(self) -> bool:
        """Return whether the ranks left by themselves, once they had saved."""
        return notes.LEFT in self.noted

    @property
    def is_refused(self) -> bool:
        """Return whether TensorOpt refused something that another start would meet again."""
        return notes.REFUSED in self.noted

    @property
    def dead(self) -> frozenset[int]:
        """The ranks that ended without a word, as those do that are killed; none if all did, as after mpirun's own death."""
        spoke = (self.noted.get(kind, {}) for kind in (notes.TERMINATED, notes.FAILED, notes.REFUSED, notes.LEFT))
        silent = frozenset(range(self.n_ranks)).difference(*spoke)
        return silent if self.exit_code > 128 and len(silent) < self.n_ranks else frozenset()

    @property
    def why(self) -> str:
        if self.exit_code == 0:
            return "done"
        if self.has_left:
            return "a request to stop; saved"
        failure = next(iter({**self.noted.get(notes.FAILED, {}), **self.noted.get(notes.REFUSED, {})}.values()), None)
        if failure is not None:
            return str(failure["error"])
        number, cause = self.exit_code - 128, f"exit code {self.exit_code}"
        if number > 0:
            cause = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        ranks = ", ".join(map(str, sorted(self.dead)))
        return f"{cause} of rank{'s' * (len(self.dead) > 1)} {ranks}" if ranks else cause

    def as_json(self) -> dict[str, Any]:
        return {
            "ranks": self.n_ranks,
            "from": dict(zip(("fit", "step"), self.from_step, strict=False)),
            "to": dict(zip(("fit", "step"), self.last_step, strict=False)),
            "lost_steps": self.lost_steps,
            "seconds": round(self.seconds, 3),
            "exit_code": self.exit_code,
            "ended_by": self.why,
        }

    @property
    def lost_steps(self) -> int | None:
        """The steps that have to be taken again, as far as ranks could say."""
        if self.exit_code == 0 or self.has_left:
            return 0
        if not self.last_step:
            return None
        fit, step = self.last_step
        steps = [mark[1] for mark in (self.saved_step, self.from_step) if mark and mark[0] == fit]
        return max(0, step - max(steps, default=0))


def why_not_again(attempts: Sequence[Attempt], most: int, saves: bool) -> str | None:
    """Return why the last attempt isn't followed by another one; None if it is.

    Args:
        most: how many restarts there may be.
        saves: whether the run is to save, so that one which never does goes nowhere.
    """
    last, before = attempts[-1], attempts[-2] if len(attempts) > 1 else None
    if last.is_refused:
        return "another start would be refused again"
    if len(attempts) > most:
        return f"all of --restarts {most} are used" if most else "--restarts allows none"
    if before is not None and last.last_step and (last.why, last.last_step) == (before.why, before.last_step):
        return f"it failed twice at step {last.last_step[1]} in the same way"
    if saves and before is not None and not (last.saved_step or before.saved_step):
        return "two attempts one after the other have saved nothing"
    return None


def table(attempts: Sequence[Attempt]) -> str:
    from tabulate import tabulate  # here, since its import is most of a run's

    def text(value: Any) -> str:
        return "-" if value in (None, ()) else ":".join(map(str, value)) if isinstance(value, tuple) else str(value)

    rows: list[tuple[str, ...]] = [_HEADER]
    for n, attempt in enumerate(attempts):
        steps = map(text, (attempt.from_step, attempt.last_step, attempt.lost_steps))
        rows.append(
            (str(n), str(attempt.n_ranks), *steps, f"{attempt.seconds:.1f}", attempt.why.splitlines()[0][:_MOST_TEXT])
        )
    return tabulate(rows, "firstrow", "plain", colalign=["right"] * 6 + ["left"], disable_numparse=True)
