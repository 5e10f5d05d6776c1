"""Put a checkpoint's files in place: they are made in a folder beside the target, and replace it all at once or not at all.

A checkpoint ``run/ckpt`` is ``run/ckpt.index`` with ``run/ckpt.data-00000-of-00003`` and so on. The new one is written and
synced to the disk in ``run/.ckpt.partial/``. Then its data files move beside the target, and the rename of its index is the
moment at which it replaces the old one. Data files of the old checkpoint have other names, since the new one is made with
another number of files; they are removed last. Whenever this is cut short, the index that is in place has all of its data
files.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf import text_format

from ...common.errors import InputError, TensorOptError, cut, describe
from ...common.files import needing_folder, write_atomically
from ...common.process.lock import Lock

_DATA_FILE = re.compile(r"\.data-(\d{5})-of-(\d{5})")
_REASON = re.compile(r"; ([^;\[\n]+?)(?: \[Op:|$)")


@dataclass(frozen=True, slots=True)
class CheckpointLocation:
    """The place of a checkpoint: ``folder / name`` is its prefix."""

    folder: Path
    name: str

    @classmethod
    def of(cls, prefix: str | os.PathLike[str]) -> CheckpointLocation:
        """Return the place of a prefix; raise InputError if the prefix has no name or isn't a path of a file system."""
        text = os.fspath(prefix)
        if "://" in text or not os.path.basename(text):
            raise InputError(
                describe("a checkpoint's prefix is a path", got=repr(text), expected="folder/name, such as 'run/ckpt'")
            )
        return cls(Path(text).parent, Path(text).name)

    @property
    def prefix(self) -> str:
        """The checkpoint's prefix, ``folder/name``."""
        return str(self.folder / self.name)

    @property
    def index(self) -> Path:
        return self.folder / f"{self.name}.index"

    @property
    def scratch(self) -> Path:
        """The folder in which a new checkpoint is made. Files that are already in it are from a save that was cut short."""
        return self.folder / f".{self.name}.partial"

    def lock(self) -> Lock:
        """Return the lock that only one save may hold at a time, not held yet."""
        return Lock(self.folder / f".{self.name}.lock")

    def data_files(self) -> dict[tuple[int, int], Path]:
        """Return the existing data files by (number, count of files)."""
        files = {}
        for file in self.folder.iterdir() if self.folder.is_dir() else ():
            match = _DATA_FILE.fullmatch(file.name.removeprefix(self.name)) if file.name.startswith(self.name) else None
            if match is not None:
                files[int(match[1]), int(match[2])] = file
        return files

    def prepare(self, lock: Lock) -> None:
        """Make the target's folder if it doesn't exist, take the lock, and make the empty scratch folder.

        Raises:
            InputError: the folder can't be made or written.
            TensorOptError: another process holds the lock.
        """
        with needing_folder(f"checkpoint '{self.prefix}' can't be saved"):
            self.folder.mkdir(parents=True, exist_ok=True)
            holder = lock.acquire()
            if holder is not None:
                raise TensorOptError(
                    describe(
                        f"checkpoint '{self.prefix}' can't be saved: another run saves to it",
                        got=f"its lock '{lock.path}' held by {holder}",
                        advice="let each run save to a prefix of its own, or end the other one",
                    )
                )
            if self.scratch.exists():
                shutil.rmtree(self.scratch)
            self.scratch.mkdir()

    def discard(self) -> None:
        """Remove the scratch folder with all its files."""
        shutil.rmtree(self.scratch, ignore_errors=True)

    def commit(self) -> None:
        """Move the checkpoint that was merged in the scratch folder, under this name, to this place."""
        source = CheckpointLocation(self.scratch, self.name)
        with writing(self, source.index, 0):
            files = source.data_files()
            make_safe(source.index)
            for file in files.values():
                file.replace(self.folder / file.name)
            make_safe(self.folder)
            source.index.replace(self.index)
            make_safe(self.folder)
        self.discard()
        for key, file in self.data_files().items():
            if key not in files:
                _unlink(file)

    def remove(self) -> None:
        """Remove the checkpoint; its index first, so that a part of it is never taken for a complete checkpoint."""
        _unlink(self.index)
        for file in self.data_files().values():
            _unlink(file)


def make_safe(file: Path) -> None:
    """Sync a file (or a folder's list of files) to the disk, so that not even a power cut undoes it."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unlink(file: Path) -> None:
    with contextlib.suppress(OSError):
        file.unlink()


@contextlib.contextmanager
def writing(location: CheckpointLocation, file: Path, n_bytes: int) -> Iterator[None]:
    """Report in one sentence which file of a checkpoint couldn't be written, and how many bytes it needed.

    Raises:
        TensorOptError: TensorFlow or the system couldn't write the file.
    """
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        size = f" of {n_bytes} bytes" if n_bytes else ""
        free_bytes = shutil.disk_usage(location.folder).free if location.folder.is_dir() else 0
        is_full = free_bytes < n_bytes or reason(error) == os.strerror(errno.ENOSPC)
        advice = "make room, or save elsewhere" if is_full else "save elsewhere, or see to that folder"
        raise TensorOptError(
            describe(
                f"checkpoint '{location.prefix}' can't be saved",
                got=f"'{reason(error)}' for file '{file}'{size}, with {free_bytes} bytes free there",
                advice=f"{advice}; the checkpoints that were there are as they were",
            )
        ) from error


def reason(error: Exception) -> str:
    """Return why writing or reading failed, without the rest of TensorFlow's message."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    # If the system refused, messages end with "FILE; REASON [Op:NAME]".
    message = str(error).splitlines()[0]
    match = _REASON.search(message)
    return match[1] if match else message.split("}} ")[-1].split(" [Op:")[0]


def keep_newest(location: CheckpointLocation, max_to_keep: int | None) -> None:
    """Enter a new checkpoint in its folder's ``checkpoint`` file, and remove the oldest there beyond ``max_to_keep``.

    The file is TensorFlow's: ``tf.train.latest_checkpoint`` and ``tf.train.CheckpointManager`` read it. Paths in it are
    relative, so that the folder may be moved.
    """
    listed = (CheckpointLocation(location.folder, Path(path).name) for path in listed_prefixes(location.folder))
    names = [old.name for old in listed if old.name != location.name and old.index.exists()] + [location.name]
    oldest = names[:-max_to_keep] if max_to_keep else []
    names = names[len(oldest) :]
    state = tf.compat.v1.train.generate_checkpoint_state_proto(str(location.folder.absolute()), location.name, names)
    text = text_format.MessageToString(state)
    write_atomically(location.folder / "checkpoint", lambda partial: partial.write_text(text), "the list of checkpoints")
    for name in oldest:
        CheckpointLocation(location.folder, name).remove()


def listed_prefixes(folder: Path) -> list[str]:
    """Return the prefixes that a folder's ``checkpoint`` file lists, oldest first; none if it can't be read."""
    try:
        state = _list_in(folder)
    except InputError:
        return []
    return list(state.all_model_checkpoint_paths) if state is not None else []


def latest_in(folder: Path) -> str | None:
    """Return the latest prefix in a folder's ``checkpoint`` file; None without one. Raise InputError if it is damaged."""
    state = _list_in(folder)
    latest = str(state.model_checkpoint_path) if state is not None else None
    return latest if latest and CheckpointLocation.of(latest).index.is_file() else None


def _list_in(folder: Path) -> Any:
    """Return the state in a folder's ``checkpoint`` file, with complete paths; raise InputError if it is damaged."""
    file = folder / "checkpoint"
    if not file.is_file():
        return None
    try:
        state, content = tf.train.get_checkpoint_state(str(folder)), "what is no list"
    except ValueError as error:
        state, content = None, cut(error)
    if state is None:
        advice = "load a checkpoint by its own name, folder/name, or save another one into the folder"
        raise InputError(describe(f"the list of checkpoints '{file}' is damaged", got=content, advice=advice))
    return state
