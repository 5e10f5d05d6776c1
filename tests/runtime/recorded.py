"""Run a rank (the rest of the command line) and write its exit code to FOLDER/RANK.

If mpirun kills this process too, the file still holds the rank's process id: ``pid 123``.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

record = Path(sys.argv[1]) / os.environ["OMPI_COMM_WORLD_RANK"]


def write(text: str) -> None:
    """All or nothing: mpirun may kill this process between the emptying of a file and its filling."""
    whole = record.with_suffix(".new")
    whole.write_text(text)
    os.replace(whole, record)


# mpirun signals the whole process group: outlive the rank to see how it ended.
child = subprocess.Popen([sys.executable, *sys.argv[2:]])
write(f"pid {child.pid}")
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
code = child.wait()
write(str(code))
os._exit(code if code >= 0 else 128 - code)
