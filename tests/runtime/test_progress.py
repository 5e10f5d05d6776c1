"""Scripts show what they are doing: on rank 0 alone, with the plan in three lines, unless they ask for silence."""

from __future__ import annotations

from pathlib import Path

from helpers.mpirun import run_ranks

SCRIPT = Path(__file__).with_name("progress_rank.py")
STARTING = ["start of the ranks", "measurement of the devices"]
PLANNING = ["capture of the model", "gradients of the model", "search for a plan"]
RUNNING = ["first values of the variables", "first step"]
DISTURBED = "other work disturbs these devices"  # as it may while tests run
SHOWN = {
    "session 1": [*STARTING, "search for a plan", "import of the model", "import of the model", *RUNNING],
    "session 0": STARTING[:1],  # init() comes before the call that asks for silence
    "trainer 1": ["start", STARTING[0], "start", *PLANNING, *RUNNING],
    "trainer 0": [],
}


def test_rank_0_shows_each_phase_and_each_plan_once() -> None:
    done = run_ranks(2, SCRIPT, env={"TENSOROPT_QUIET": "0", "TENSOROPT_CACHE": "off"})
    assert done.returncode == 0, done.stderr
    said = {rank: [line for line in done.stdout.splitlines() if line.startswith(f"rank {rank}: ")] for rank in (0, 1)}
    assert said[0] == [f"rank 0: {name}" for train, phases in SHOWN.items() for name in (train, *phases)]
    assert said[1] == [f"rank 1: {train}" for train in SHOWN]
    lines = [line for line in done.stderr.splitlines() if line.startswith("tensoropt: ") and DISTURBED not in line]
    starts = [line.split()[1] for line in lines]
    assert starts == 2 * ["plan:", "time:", "memory:"], done.stderr
    assert "2 devices" in lines[0] and " ms per step predicted, " in lines[1] and " per device" in lines[2]
