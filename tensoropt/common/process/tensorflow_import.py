"""Import TensorFlow without the lines that it prints on every import, before its log level takes effect.

``import tensoropt`` calls :func:`watch_import`, so that this holds for the user's own import of TensorFlow or Keras, too.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence

from ..errors import InputError
from ..versions import untried_versions
from .garbage import nothing_collected
from .imports import around_import
from .launched import launched_as
from .progress import Display
from .streams import open_closed_streams

# Lines with these texts are dropped; everything else that the import writes is passed on.
_NOISE = ("oneDNN custom operations are on", "before absl::InitializeLog()")
_COMMANDS = ("tensoropt", "-m")
"""The names that Python gives to commands, many of which need no TensorFlow."""
MISSING = (
    "TensorFlow isn't installed beside this Python. Install it with pip install tensorflow-cpu, or for GPUs with "
    "pip install 'tensorflow[and-cuda]'"
)


def import_tensorflow() -> None:
    """Import TensorFlow; raise InputError if it isn't installed."""
    open_closed_streams()
    if "tensorflow" not in sys.modules and importlib.util.find_spec("tensorflow") is None:
        raise InputError(MISSING)
    import tensorflow  # noqa: F401


def watch_import() -> None:
    """Make the first import of TensorFlow quiet, and say if it takes long, if none is there, or if versions are untried.

    Rank 0 alone says something. A log level of 0 or 1 in ``TF_CPP_MIN_LOG_LEVEL`` shows everything.
    """
    if "tensorflow" in sys.modules:
        _say(untried_versions())
    elif importlib.util.find_spec("tensorflow") is not None:
        around_import("tensorflow", _first_import)
    elif os.path.basename("".join(sys.argv[:1])) not in _COMMANDS:
        _say([MISSING])


def _say(sentences: Sequence[str]) -> None:
    display = Display(_is_first())
    for sentence in sentences:
        display.say(sentence)


def _is_first() -> bool:
    return (launched_as() or (0, None))[0] == 0


@contextlib.contextmanager
def _first_import() -> Iterator[None]:
    with _quiet(), nothing_collected():
        yield
    _say(untried_versions())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drop noise from what is written to stderr in this context, which the rest reaches at its end."""
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2") in ("0", "1"):
        yield
        return
    sys.stderr.flush()
    descriptor = os.dup(2)
    with tempfile.TemporaryFile() as written, os.fdopen(descriptor, "w") as terminal:
        os.dup2(written.fileno(), 2)
        display = Display(_is_first(), stream=terminal if sys.stderr is sys.__stderr__ else None)
        try:
            with display.phase("import of TensorFlow"):
                yield
        finally:
            os.dup2(descriptor, 2)
            written.seek(0)
            for line in written.read().decode(errors="replace").splitlines():
                if not any(noise in line for noise in _NOISE):
                    print(line, file=sys.stderr)
