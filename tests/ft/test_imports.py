"""The search, layouts, the graph and measuring load without TensorFlow and MPI, and under their own names only."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import importlib, pkgutil, sys
import tensoropt.ft, tensoropt.ir, tensoropt.reschedule, tensoropt.profiling.measure, tensoropt.profiling.description_text
for package in (tensoropt.ft, tensoropt.ir, tensoropt.reschedule):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
loaded = set(sys.modules)
assert not loaded & {"tensorflow", "keras", "mpi4py"}, loaded & {"tensorflow", "keras", "mpi4py"}
assert not loaded & {"ft", "reschedule", "profiling"}, loaded & {"ft", "reschedule", "profiling"}
"""


def test_no_tensorflow_and_no_bare_names() -> None:
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
