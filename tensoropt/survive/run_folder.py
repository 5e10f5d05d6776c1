"""Find the newest checkpoint of a ``fit`` that is whole, in the folder that has them all."""

from __future__ import annotations

import hashlib
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from ..common.errors import InputError
from ..common.files import needing_folder
from ..runtime.checkpoint.location import CheckpointLocation
from ..runtime.checkpoint.metadata import read_at, refusing_unreadable
from ..runtime.failures.interruptions import say
from .plain_values import from_reader

_NAME = re.compile(r"step-(\d+)\.index")


class SavedRun(NamedTuple):
    """A checkpoint that is whole: its prefix, and the state of the run that it has beside the variables."""

    prefix: str
    state: dict[str, Any]


class FitFolder:
    """The folder of one ``fit``'s checkpoints: ``folder/fit-0`` for the first one of a script.

    Args:
        fit: how many ``fit`` of the script were kept in it before.
    """

    def __init__(self, folder: Path, fit: int) -> None:
        self.path = folder / f"fit-{fit}"

    def prefix(self, n_steps: int) -> str:
        """Return the prefix of the checkpoint after so many steps."""
        return str(self.path / f"step-{n_steps}")

    def newest(self, key: str) -> SavedRun | None:
        """Return the newest checkpoint that is whole, after reading it through; None without any. Name those that aren't.

        Args:
            key: what its state has: "position" if it is of a ``fit``, "loop" if it is of a loop of the user's own.

        Raises:
            InputError: the folder can't be made or written, or its checkpoint is of the other kind.
        """
        with needing_folder(f"nothing can be saved in '{self.path}'"):
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path):
                pass
        self._tidy()
        numbers = [int(match[1]) for file in self.path.iterdir() if (match := _NAME.fullmatch(file.name))]
        for number in sorted(numbers, reverse=True):
            location = CheckpointLocation.of(self.prefix(number))
            try:
                read_at(location)
                with refusing_unreadable(location):
                    reader = tf.train.load_checkpoint(location.prefix)
                    for name in reader.get_variable_to_shape_map():  # its parts have checksums
                        reader.get_tensor(name)
                    state = from_reader(reader)
            except InputError as error:
                say(f"{str(error).rstrip('.')}; the one before it is taken")
                continue
            if state is not None and key not in state:
                by, other = ("fit", "a loop") if key == "loop" else ("a loop", "fit")
                raise InputError(f"'{location.prefix}' was saved by {by}, and {other} can't use it; give another folder")
            if state is not None:
                return SavedRun(location.prefix, state)
        return None

    def _tidy(self) -> None:
        """Remove what saves that were cut short have left, but not a save that another process is at."""
        for folder in self.path.glob(".step-*.partial"):
            location = CheckpointLocation.of(str(self.path / folder.name[1 : -len(".partial")]))
            lock = location.lock()
            if lock.acquire() is None:
                location.discard()
                lock.release()


def made_by() -> dict[str, str]:
    """Return what a run's numbers depend on beside its data: the script and the versions."""
    script = Path(sys.argv[0])
    text = script.read_bytes() if script.is_file() else b""
    return {
        "the script": hashlib.sha256(text).hexdigest()[:16],
        "TensorOpt's version": sys.modules["tensoropt"].__version__,
        "TensorFlow's version": tf.__version__,
    }
