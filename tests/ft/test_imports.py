"""The search and the layouts load without TensorFlow, and under their own names only."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
import tensoropt.ft, tensoropt.reschedule
loaded = set(sys.modules)
assert "tensorflow" not in loaded and "keras" not in loaded, "TensorFlow was imported"
assert not loaded & {"ft", "reschedule", "profiling"}, loaded & {"ft", "reschedule", "profiling"}
"""


def test_no_tensorflow_and_no_bare_names() -> None:
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
