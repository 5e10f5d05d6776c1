"""What the command ``tensoropt run`` and its ranks tell each other: by variables, and by small files in a folder."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from ...common.process.launched import launched_as

CHECKPOINT, EVERY, KEEP = "TENSOROPT_CHECKPOINT", "TENSOROPT_EVERY", "TENSOROPT_KEEP"
"""Environment variables with the options of these names; set where the command was given ``--checkpoint``."""
SEED, LEAVING_CODE, NOTES = "TENSOROPT_SEED", "TENSOROPT_LEAVING_CODE", "TENSOROPT_NOTES"
"""Environment variables with the seed of a run, the code to leave with once it is saved, and the folder of the notes."""
ATTEMPT = "TENSOROPT_ATTEMPT"
"""An environment variable with how often a run was started again, for scripts to read."""

BEGUN, SAVED, LEFT, DONE = "begun", "saved", "left", "done"
REFUSED, FAILED, TERMINATED = "refused", "failed", "terminated"
_INTERVAL_S = 1.0
_position: list[int] = []
_noted_s = 0.0


def note(kind: str, **content: Any) -> None:
    """Leave a note for the command that started this rank, with the step that the rank is in; it replaces an older one."""
    folder = os.environ.get(NOTES)
    if folder is None:
        return
    rank, _ = launched_as() or (0, None)
    partial = Path(folder, f"{kind}.{rank}.partial")  # of each rank its own, since all may note at once
    with contextlib.suppress(OSError):
        partial.write_text(json.dumps({"at": _position, **content}))
        partial.replace(Path(folder, f"{kind}.{rank}"))


def note_begin(fit: int, step: int) -> None:
    """Note that ranks train from here on, and take signals as requests; the first ``fit`` that does counts."""
    if not _position:
        _position[:] = [fit, step]
        note(BEGUN, begun=_position)


def note_step(fit: int, step: int) -> None:
    """Note that the training of a script's ``fit`` has come to a step; it is written once a second."""
    global _noted_s
    _position[:] = [fit, step]
    if time.monotonic() - _noted_s > _INTERVAL_S:
        _noted_s = time.monotonic()
        note("step")


def read_notes(folder: Path) -> dict[str, dict[int, Any]]:
    """Return what ranks have noted: for each kind of note, its content by rank."""
    notes: dict[str, dict[int, Any]] = {}
    for file in folder.iterdir():
        kind, _, rank = file.name.partition(".")
        if rank.isdecimal():
            with contextlib.suppress(OSError, ValueError):
                notes.setdefault(kind, {})[int(rank)] = json.loads(file.read_text())
    return notes
