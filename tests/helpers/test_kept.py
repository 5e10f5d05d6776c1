"""What a run of the tests keeps is computed by one process, and read by the others."""

from __future__ import annotations

import functools
import multiprocessing
import os
from pathlib import Path

import pytest

from helpers import zoo
from helpers.kept import FOLDER, kept, name_of, open_folder


def _asked(file: str) -> list[int]:
    """Compute a value, and note in a file that it was computed."""

    def compute() -> list[int]:
        with open(file, "a") as noted:
            noted.write("once ")
        return [1, 2]

    return kept("a value", compute)


def test_processes_compute_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    noted = tmp_path / "noted"
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert pool.map(_asked, [str(noted)] * 6) == [[1, 2]] * 6
    assert noted.read_text() == "once "
    assert kept(None, lambda: 3) == 3 and kept("a value", lambda: 3) == [1, 2]
    assert kept("a value", lambda: 3) is not kept("a value", lambda: 3)


def test_what_fails_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    with pytest.raises(ZeroDivisionError):
        kept("another", lambda: 1 / 0)
    assert kept("another", lambda: 4) == 4


def test_names_tell_functions_apart() -> None:
    assert name_of(zoo.mlp) == "helpers.zoo.mlp"
    assert name_of(functools.partial(zoo.mlp, batch=8)) == "helpers.zoo.mlp ('batch', 8)"
    assert name_of(functools.partial(map, zoo.mlp, 3)) == "builtins.map helpers.zoo.mlp 3"
    assert name_of(lambda: zoo.mlp()) is None and name_of(functools.partial(map, lambda: 0)) is None


def test_a_folder_ends_with_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER)
    close = open_folder()
    folder = Path(os.environ[FOLDER])
    with open(folder / "alive", "rb", buffering=0) as alive:
        close()
        assert alive.read() == b""
    assert not folder.exists()
