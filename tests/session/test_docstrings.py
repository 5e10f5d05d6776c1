"""The examples in the docstrings of public functions print what they show."""

from __future__ import annotations

import sys

from helpers.mpirun import ROOT, forked, run_command

FOLDERS = ("tensoropt", "reschedule", "ft", "profiling")
"""Those links to folders at the top are not followed."""


def test_examples_of_docstrings() -> None:
    """In a process of their own, for one of them changes what Keras's ``fit`` does."""
    files = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py")) if ">>> " in file.read_text()]
    done = run_command([sys.executable, *forked("-m", "pytest", "--doctest-modules", *files)], timeout=120, cwd=ROOT)
    assert done.returncode == 0 and len(files) >= 7, done.stdout + done.stderr
