"""The number of callbacks that TensorFlow's pool runs at once is tried out, not believed."""

from __future__ import annotations

import sys

import pytest
from helpers.mpirun import forked, run_command

PROGRAM = """
import os, sys
if sys.argv[1] == "early":
    import tensorflow as tf
    tf.zeros([]) + 1  # the runtime starts with what it finds
os.environ["TF_NUM_INTEROP_THREADS"] = "3"
from tensoropt.runtime.collectives.thread_pool import runs_at_once
print(runs_at_once(3), runs_at_once(4))
"""


@pytest.mark.parametrize(("started", "told"), [("early", "False False"), ("late", "True False")])
def test_what_the_environment_says_after_the_runtime_has_started_is_not_believed(started: str, told: str) -> None:
    command = [sys.executable, *forked("-c", PROGRAM, started)]
    done = run_command(command, timeout=120, env={"TF_NUM_INTEROP_THREADS": "1"})
    assert done.stdout.split("\n")[0] == told, done.stderr
