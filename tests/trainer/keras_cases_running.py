"""The cases of Keras's trainer and callbacks run: by a trainer and by plain Keras, each as before its first step.

mpirun -n 2 keras_cases_running.py FOLDER NAME ...    these cases on two ranks
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from helpers.switches import floats
from trainer.keras_callback_cases import CALLBACKS
from trainer.keras_cases import EVALUATING, FITTING, Case
from trainer.keras_models import KINDS
from trainer.models import fresh_plain, restart

TOLERANCE = 1e-9
CASES = {case.name: case for case in (*FITTING, *EVALUATING, *CALLBACKS)}
RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))


@cache
def trainer_of(kind: str, **options: Any) -> Any:
    """The trainer of a kind of model; making one takes seconds."""
    return KINDS[kind].trainer(cluster="v100-1x2", **options)


def fresh(kind: str, **options: Any) -> Any:
    """The trainer as it was before its first step."""
    trainer = trainer_of(kind, **options)
    if trainer.deferred is None:
        restart(trainer)
    trainer._initial_epoch = None
    return trainer


def check(case: Case, folder: Path, **options: Any) -> None:
    """Run a case by both."""
    trainer = fresh(case.kind, **options)
    got, weights = case.use(trainer, _made(folder / "ours")), trainer.get_weights()
    if RANK == 0:
        plain = fresh_plain(KINDS[case.kind].plain)
        assert_same(got, case.use(plain, _made(folder / "keras")))
        assert_same(weights, plain.get_weights())


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def assert_same(got: Any, expected: Any) -> None:
    """Numbers are the same to 1e-9 of the tensor's largest magnitude, anything else exactly."""
    ours, theirs = dict(_flat(got)), dict(_flat(expected))
    assert list(ours) == list(theirs)
    for at, value in theirs.items():
        if isinstance(value, (float, np.ndarray, np.floating)):
            scale = float(np.max(np.abs(value), initial=0.0))
            np.testing.assert_allclose(ours[at], value, rtol=0, atol=TOLERANCE * scale + 1e-14, err_msg=at)
        else:
            assert ours[at] == value, at


def _flat(found: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what a case returns, value by value, with its place."""
    if isinstance(found, dict):
        yield at, list(found)
        for name, value in found.items():
            yield from _flat(value, f"{at}.{name}")
    elif isinstance(found, (list, tuple)):
        yield at, len(found)
        for i, value in enumerate(found):
            yield from _flat(value, f"{at}[{i}]")
    else:
        yield at, found


def main(folder: str, *names: str) -> None:
    with floats("float64"):
        for kind in dict.fromkeys(CASES[name].kind for name in names):
            trainer_of(kind)  # ahead of plain Keras's models, which rank 0 alone makes, so that ranks number names alike
        for name in names:
            check(CASES[name], Path(folder) / name.replace(" ", "-"))
            if RANK == 0:
                print(f"same: {name}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
