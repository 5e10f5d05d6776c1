"""The gallery's scripts: on two ranks they show what they show without TensorOpt, and change no more than the table says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers.large import first
from helpers.mpirun import run_ranks

from examples import gallery_scripts as gallery

CHEAP = ("custom_loop", "tensorflow_1")
NAMES = [*CHEAP, *sorted(path.stem for path in gallery.GALLERY.glob("*.py") if path.stem not in (*CHEAP, gallery.APART))]
WORKER = Path(gallery.__file__)


def steps_of(n_ranks: int, *arguments: str) -> list[dict[str, float]]:
    done = run_ranks(n_ranks, WORKER, *arguments, timeout=300, env={"TENSOROPT_QUIET": "0"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert n_ranks == 1 or re.search("[1-9][0-9]* of [0-9]+ operators split", done.stderr), done.stderr
    return gallery.steps_shown(done.stdout)


@pytest.mark.parametrize("name", first(len(CHEAP), NAMES))
def test_a_script_shows_on_two_ranks_what_it_shows_without_tensoropt(name: str) -> None:
    alone, together = steps_of(1, name, "plain"), steps_of(2, name)
    assert len(alone) == len(together) == 3
    for one, other in zip(alone, together, strict=True):
        assert other == pytest.approx(one, rel=gallery.tolerance(name), abs=0)


def test_scripts_of_keras_are_plain_ones_but_for_two() -> None:
    changed = {name: gallery.changed_lines((gallery.GALLERY / f"{name}.py").read_text()) for name in NAMES}
    assert len(changed) >= 20
    assert {name: len(lines) for name, lines in changed.items() if lines} == {"mini_gpt": 1, "resnet": 1, "tensorflow_1": 2}


def test_the_table_is_that_of_the_scripts() -> None:
    page = gallery.GALLERY / "README.md"
    assert page.read_text() == gallery.with_table(page.read_text()), f"run: python {WORKER}"
