"""What processes of one run of the tests share: a folder, in which the first that computes something keeps it for all.

``kept.py COMMAND ...`` runs a command whose runs of pytest are one run to this.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = "TENSOROPT_TESTS_KEPT"
"""The environment variable with the folder of this run, which the processes that it starts inherit."""
ALIVE = "alive"
"""A pipe in the folder that ends with the run, also where that is killed."""


def open_folder() -> Callable[[], None]:
    """Make the folder of this run; return what removes it, and lets those end that read the pipe."""
    folder = tempfile.mkdtemp(prefix="tensoropt-tests-")
    os.mkfifo(Path(folder, ALIVE))
    held = os.open(Path(folder, ALIVE), os.O_RDWR)  # opening it to write alone would wait for a reader
    os.environ[FOLDER] = folder

    def close() -> None:
        del os.environ[FOLDER]
        os.close(held)
        shutil.rmtree(folder, ignore_errors=True)

    return close


def name_of(value: Any) -> str | None:
    """Return what tells a function from all others in every process, or None if nothing does: of a closure, a lambda.

    A ``functools.partial`` has the names of its function and arguments.
    """
    if isinstance(value, functools.partial):
        names = [name_of(each) for each in (value.func, *value.args, *sorted(value.keywords.items()))]
        return None if None in names else " ".join(map(str, names))
    if not callable(value):
        return repr(value)
    return None if "<" in value.__qualname__ else f"{value.__module__}.{value.__qualname__}"


def kept(name: str | None, compute: Callable[[], Any]) -> Any:
    """Return what another process has kept under a name, else what is computed now, while others that need it wait.

    Without a name it is computed always. What is kept is read from a file, so that no two processes share an object.
    """
    folder = os.environ.get(FOLDER)
    if folder is None or name is None:
        return compute()
    file = Path(folder, hashlib.sha256(name.encode()).hexdigest())
    with open(file.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if file.exists():
            return pickle.loads(file.read_bytes())
        value = compute()
        own = file.with_suffix(".new")  # what is cut off by the end of this process is never read
        own.write_bytes(pickle.dumps(value))
        own.replace(file)
    return value


def main() -> int:
    """Run a command with a folder for all that it starts; return how it ended."""
    close = open_folder()
    try:
        return subprocess.run(sys.argv[1:], check=False).returncode
    finally:
        close()


if __name__ == "__main__":
    sys.exit(main())
