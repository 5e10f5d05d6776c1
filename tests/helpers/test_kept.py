"""What a run of the tests keeps is computed by one process, and read by the others."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import zoo
from helpers.kept import FOLDER, kept, name_of, open_folder
from helpers.mpirun import child_environment

ASKS = """
import sys
from helpers.kept import kept

def compute():
    print("computed", file=sys.stderr)
    return [1, 2]

print(kept("a value", compute))
"""


def test_processes_compute_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    asking = [subprocess.Popen([sys.executable, "-c", ASKS], **pipes, text=True, env=child_environment()) for _ in range(3)]
    said = [process.communicate(timeout=60) for process in asking]
    assert [out for out, _ in said] == ["[1, 2]\n"] * 3
    assert "".join(error for _, error in said) == "computed\n"
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
