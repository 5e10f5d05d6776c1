"""Configure this environment so that bare ``mpirun`` starts more ranks than cores, as pip does when it installs TensorOpt.

Run it as ``python -m tensoropt.runtime.mpi_config`` if Open MPI was installed or upgraded afterwards.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

# Written into etc/prte-mca-params.conf of the environment, so that bare mpirun starts more ranks than cores.
MAPPING_POLICY = ("rmaps_default_mapping_policy", ":oversubscribe")


def configure_environment(prefix: Path) -> Path | None:
    """Let the Open MPI that is installed in ``prefix`` start more ranks than cores.

    Returns the file with the setting, or None if there is no Open MPI in ``prefix``. An existing setting stays.
    """
    settings = prefix / "etc" / "prte-mca-params.conf"
    if not settings.is_file():
        return None
    text = settings.read_text()
    name, value = MAPPING_POLICY
    if not re.search(rf"^\s*{name}\s*=", text, flags=re.MULTILINE):
        # Replaced, not rewritten: an installer may have linked the file to its cache.
        replacement = settings.with_suffix(".new")
        replacement.write_text(f"{text.rstrip()}\n\n# More ranks than cores are allowed (TensorOpt).\n{name} = {value}\n")
        os.replace(replacement, settings)
    return settings


def main() -> int:
    """Configure the environment of this Python."""
    settings = configure_environment(Path(sys.prefix))
    print(f"mpirun allows more ranks than cores: {settings}" if settings else f"no Open MPI in {sys.prefix}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
