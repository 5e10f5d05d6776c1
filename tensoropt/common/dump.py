"""``TENSOROPT_DUMP=folder`` writes one readable text file for each stage of a run."""

from __future__ import annotations

import os
from pathlib import Path


def dump(stage: str, *parts: object) -> None:
    """Write the stage's parts, one after the other, if the variable is set; a stage that comes again is numbered."""
    folder = os.environ.get("TENSOROPT_DUMP")
    if not folder:
        return
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    number = sum(1 for _ in target.glob(f"{stage}*.txt"))
    name = f"{stage}.txt" if number == 0 else f"{stage}-{number + 1}.txt"
    (target / name).write_text("\n\n".join(map(str, parts)) + "\n")
