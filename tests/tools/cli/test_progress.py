"""How far a search is, where stderr is no terminal: lines, the first and the others after a while."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from helpers.mpirun import forked, run_command

from tensoropt.common import progress
from tensoropt.common.progress import Bars


@pytest.fixture(autouse=True)
def _quick_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "FIRST_S", 0.01)
    monkeypatch.setattr(progress, "EACH_S", 0.02)
    monkeypatch.delenv("TENSOROPT_QUIET")


def lines_until(n_lines: int, capsys: pytest.CaptureFixture[str]) -> list[str]:
    found: list[str] = []
    while len(found) < n_lines:
        time.sleep(0.01)
        found += capsys.readouterr().err.splitlines()
    return found


def test_lines_say_how_far_a_stage_is_and_go_on_while_it_tells_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Bars() as bars:
        bars.update("costs", 3, 7)
        found = lines_until(2, capsys)
        assert all(line.startswith("tensoropt: after ") and line.endswith(" s: costs, 3 of 7") for line in found), found
        bars.update("search", 0, 9)
        lines_until(1, capsys)
        assert lines_until(1, capsys)[-1].endswith("search, 0 of 9")
    capsys.readouterr()
    time.sleep(0.1)
    assert not capsys.readouterr().err, "nothing is written after the end"


def test_quiet_is_quiet_and_nothing_is_told_before_something_began(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Bars():
        time.sleep(0.1)
    monkeypatch.setenv("TENSOROPT_QUIET", "1")
    with Bars() as bars:
        bars.update("costs", 3, 7)
        time.sleep(0.1)
    assert not capsys.readouterr().err


def test_commands_write_them(tmp_path: Path) -> None:
    """Both commands in one process, with the first line as soon as there is something to tell."""
    script = tmp_path / "both.py"
    script.write_text(
        "from tensoropt.common import progress\n"
        "from tensoropt.tools.cli.main import main\n"
        "progress.FIRST_S = progress.EACH_S = 0.001\n"
        "for command in ('search', 'compare'):\n"
        "    print(main([command, 'zoo:lenet5', '--devices', '2']))\n"
    )
    done = run_command([sys.executable, *forked(script)], timeout=240)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("tensoropt: after ")]
    stages = {line.partition(" s: ")[2].partition(", ")[0] for line in lines}
    assert {"costs", "search"} <= stages and any("data-parallel" in stage or "tofu" in stage for stage in stages), stages
