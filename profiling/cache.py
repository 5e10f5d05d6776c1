"""The folder that keeps measurements between runs: ``$TENSOROPT_CACHE``, else ``tensoropt`` in the user's folder of caches.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

VARIABLE, OFF = "TENSOROPT_CACHE", "off"


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder, which may not exist yet; None if ``TENSOROPT_CACHE=off``: then nothing is kept or looked up."""
    value = environ.get(VARIABLE)
    if value is not None:
        return None if value == OFF else Path(value).expanduser()
    caches = environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path("~/.cache").expanduser()) / "tensoropt"
