"""Write one readable text file for each phase of a run, into the folder that ``TENSOROPT_DUMP`` names."""

from __future__ import annotations

import os
from pathlib import Path


def dump(phase: str, *parts: object) -> None:
    """Write a phase's parts to its file, one after the other, if ``TENSOROPT_DUMP`` is set.

    A phase that is dumped again gets a numbered file.

    Args:
        parts: what is written as text; a function stands for what it returns, and is called only if that is written.
    """
    folder = os.environ.get("TENSOROPT_DUMP")
    if not folder:
        return
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    number = sum(1 for _ in target.glob(f"{phase}*.txt"))
    name = f"{phase}.txt" if number == 0 else f"{phase}-{number + 1}.txt"
    (target / name).write_text("\n\n".join(str(part() if callable(part) else part) for part in parts) + "\n")
