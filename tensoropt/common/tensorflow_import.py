"""Import TensorFlow without the lines that it prints on every import, before its log level takes effect."""

from __future__ import annotations

import os
import sys
import tempfile

from .streams import open_closed_streams

# Lines with these texts are dropped; everything else that the import writes is passed on.
_NOISE = ("oneDNN custom operations are on", "before absl::InitializeLog()")


def import_tensorflow() -> None:
    """Import TensorFlow quietly; a log level of 0 or 1 in ``TF_CPP_MIN_LOG_LEVEL`` shows everything."""
    open_closed_streams()
    if "tensorflow" in sys.modules or os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2") in ("0", "1"):
        return
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), 2)
        try:
            import tensorflow  # noqa: F401
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            written.seek(0)
            lines = written.read().decode(errors="replace").splitlines()
            for line in lines:
                if not any(noise in line for noise in _NOISE):
                    print(line, file=sys.stderr)
