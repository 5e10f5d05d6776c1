"""Ranks that are forks are processes like those that start alone: nothing is shared, and they end as they end."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from helpers.mpirun import run_ranks

TELLS = """
import os, random, sys, numpy
print(os.environ["OMPI_COMM_WORLD_RANK"], os.environ["GIVEN"], sys.argv[1:], os.getcwd(), sep="|", end="|")
print(__name__, __file__, sep="|", end="|")
print(hash("text"), random.random(), numpy.random.rand(), os.getpid(), sep="|")
"""


def test_ranks_differ_in_what_processes_draw_and_have_what_they_are_given(tmp_path: Path) -> None:
    script = tmp_path / "tells.py"
    script.write_text(TELLS)
    done = run_ranks(2, script, "a b", 1, env={"GIVEN": "value"})
    assert done.returncode == 0, done.stderr
    said = [line.split("|") for line in done.stdout.splitlines()]
    ranks, given, arguments, folders, names, files, *drawn = zip(*said, strict=True)
    assert sorted(ranks) == ["0", "1"] and set(given) == {"value"} and set(arguments) == {"['a b', '1']"}
    assert set(folders) == {os.getcwd()} and set(names) == {"__main__"} and set(files) == {str(script)}
    assert all(first != second for first, second in drawn)


def test_a_rank_that_hangs_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "hangs.py"
    script.write_text("import os, sys, time\nopen(f'{sys.argv[1]}/{os.getpid()}', 'w').close()\ntime.sleep(1000)\n")
    (tmp_path / "ranks").mkdir()
    with pytest.raises(AssertionError, match="hung: killed after 1"):
        run_ranks(2, script, tmp_path / "ranks", timeout=1.0)
    pids = [file.name for file in (tmp_path / "ranks").iterdir()]
    deadline = time.monotonic() + 30
    while any(Path("/proc", pid).exists() for pid in pids):
        assert time.monotonic() < deadline, f"{pids} outlive mpirun"
        time.sleep(0.01)
