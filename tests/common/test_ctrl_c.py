"""Ctrl-C ends a process that is in code which Python can't interrupt."""

import subprocess
import sys

import pytest

CODE = """
import os, signal, time
from tensoropt.common.process.progress import BENEATH, ended_soon
signal.signal(signal.SIGINT, lambda *_: None)
with ended_soon("left alone"):
    os.kill(os.getpid(), signal.SIGINT)
with ended_soon("search interrupted"):
    BENEATH[:] = ["compiling"] * {compiles}
    for _ in range({times}):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep({apart})
    time.sleep({seconds})
"""


@pytest.mark.parametrize(
    ("compiles", "times", "apart", "seconds", "code"),
    [(1, 1, 0, 60, 130), (0, 2, 2.0, 60, 130), (0, 1, 0, 1, 0), (0, 2, 0, 1, 0)],
    ids=["compiles", "twice", "once", "passed on by a launcher, too"],
)
def test_a_second_ctrl_c_or_one_while_loops_are_compiled_ends_all(compiles, times, apart, seconds, code):
    script = CODE.format(compiles=compiles, times=times, apart=apart, seconds=seconds)
    ended = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, timeout=50)
    assert (ended.returncode, ended.stderr) == (code, "\ntensoropt: search interrupted\n" if code else "")
