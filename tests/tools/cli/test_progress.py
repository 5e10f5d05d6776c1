"""Commands say how far they are where stderr is no terminal."""

from __future__ import annotations

import sys
from pathlib import Path

from helpers.mpirun import forked, run_command


def test_commands_write_progress(tmp_path: Path) -> None:
    """Both commands in one process, which wait for no time between their lines."""
    script = tmp_path / "both.py"
    script.write_text(
        "from tensoropt.common.process import progress\n"
        "from tensoropt.tools.cli.main import main\n"
        "progress.FIRST_S = progress.EACH_S = 0.001\n"
        "for command in ('search', 'compare'):\n"
        "    print(main([command, 'zoo:lenet5', '--devices', '2']))\n"
    )
    done = run_command([sys.executable, *forked(script)], timeout=240, env={"TENSOROPT_QUIET": "0"})
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("tensoropt: after ")]
    stages = {line.partition(" s: ")[2].partition(", ")[0] for line in lines}
    assert {"costs", "search"} <= stages and any("data-parallel" in stage or "tofu" in stage for stage in stages), stages
