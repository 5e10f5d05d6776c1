"""A memory limit below the least, on the command line and on several ranks: said once, and everybody ends."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from helpers.mpirun import forked, run_command, run_ranks

SEARCH = ["-m", "tensoropt", "search", "zoo:lenet5", "--cluster", "v100-1x4"]


def test_the_command_line_says_it_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, *forked(*SEARCH, "--memory", "1MB", "--without", "accumulate")]
    done = run_command(command, timeout=120)
    assert done.returncode == 2
    (line,) = [text for text in done.stderr.splitlines() if text.startswith("tensoropt:")]
    assert "no plan fits 1,000,000 bytes (1 MB) per device: the least on 4 devices " in line


def test_all_ranks_end_and_one_says_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import tensoropt\n"
        "tensoropt.init(hardware='v100-1x2')\n"
        "x = tensoropt.placeholder(tensoropt.float32, [8, 4])\n"
        "loss = tensoropt.reduce_mean(tensoropt.matmul(x, tensoropt.get_variable('w', [4, 4])))\n"
        "tensoropt.GradientDescentOptimizer(0.1).minimize(loss)\n"
        "plan = tensoropt.find_strategy(memory=100)\n"
    )
    done = run_ranks(2, script, timeout=120)
    assert done.returncode == 2
    assert done.stderr.count("no plan fits 100 bytes") == 1, done.stderr
    assert "of it for" in done.stderr and "train.py" in done.stderr


def test_a_file_of_the_command_line_tells_the_peak(tmp_path: Path) -> None:
    """A limit on the command line, too, goes by the peak, which the result has."""
    limit = 12_000_000
    command = [sys.executable, *forked(*SEARCH, "--memory", f"{limit}B", "--json", "out.json")]
    done = run_command(command, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    value = json.loads((tmp_path / "out.json").read_text())
    assert value["chosen_peak_bytes"] <= limit
