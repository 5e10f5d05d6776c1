"""Read and write a checkpoint's metadata: its variables, the objects that own them, and the caller's content.

It is stored in an entry of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from ...common.errors import InputError, describe, short
from ...common.files import name_in_file, parse_json, reading_value
from ...lowering.variables import StateEntry
from ...reschedule.layout import Shape
from .location import CheckpointLocation, latest_in, listed_prefixes, reason
from .variable import entry_name

ENTRY = "tensoropt/metadata"
FORMAT, VERSION = "tensoropt checkpoint", 1


@dataclass(frozen=True, slots=True)
class Saved:
    """A variable in a checkpoint, with its global shape and its type."""

    name: str
    shape: Shape
    dtype: str

    @classmethod
    def of(cls, entry: StateEntry) -> Saved:
        """Return what a checkpoint keeps of a state's variable."""
        return cls(entry_name(entry), tuple(entry.shape), entry.dtype)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Metadata:
    """A checkpoint's metadata.

    Attributes:
        variables: the variables, in the order of the model.
        n_files: the number of the checkpoint's data files.
        objects: for each of the user's objects (``model``, ``optimizer``), the names of its variables in its own order, None
            for a variable that isn't in the checkpoint. A Keras model that is built again finds its variables by their
            position.
        content: the JSON that the caller of ``save`` gave.
    """

    variables: tuple[Saved, ...]
    n_files: int
    objects: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    content: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(
            {
                "format": FORMAT, "version": VERSION, "files": self.n_files,
                "variables": [[saved.name, list(saved.shape), saved.dtype] for saved in self.variables],
                "objects": {name: list(names) for name, names in self.objects.items()}, "content": dict(self.content),
            }
        )

    @classmethod
    def from_json(cls, text: str | bytes, prefix: str) -> Metadata:
        """Return metadata from its JSON text; raise InputError if it is damaged or has another version."""
        with reading_value("checkpoint", prefix):
            value = parse_json(text.encode() if isinstance(text, str) else text)
            if value["version"] != VERSION:
                raise InputError(
                    f"checkpoint '{prefix}' has version {short(value['version'])}, expected {VERSION}; save it again"
                )
            if not isinstance(value["files"], int) or not isinstance(value["content"], dict):
                raise TypeError("files and content aren't a number and an object")
            return cls(
                tuple(
                    Saved(name_in_file(name), tuple(map(int, shape)), name_in_file(dtype))
                    for name, shape, dtype in value["variables"]
                ),
                value["files"],
                {name: tuple(names) for name, names in value["objects"].items()},
                value["content"],
            )


def find_checkpoint(path: str | os.PathLike[str]) -> CheckpointLocation:
    """Return the place of a checkpoint, given by its prefix or by a folder whose ``checkpoint`` file names its latest.

    Raises:
        InputError: there is none.
    """
    text = os.fspath(path)
    if os.path.isdir(text):
        latest = latest_in(Path(text))
        if latest is None:
            raise InputError(
                describe(f"folder '{text}' names no checkpoint", expected="a file 'checkpoint' there, as save makes it")
            )
        return CheckpointLocation.of(latest)
    location = CheckpointLocation.of(text)
    if not location.index.is_file():
        prefixes = [f"'{prefix}'" for prefix in listed_prefixes(location.folder)]
        raise InputError(
            describe(
                f"there is no checkpoint '{text}'",
                expected=f"a file '{location.index}'",
                advice=f"its folder has {', '.join(prefixes)}" if prefixes else None,
            )
        )
    return location


def read_at(location: CheckpointLocation) -> Metadata:
    """Return the metadata of the checkpoint in this place.

    Raises:
        InputError: the checkpoint wasn't saved by TensorOpt, is damaged, or a file is missing.
    """
    with refusing_unreadable(location):
        reader = tf.train.load_checkpoint(location.prefix)
        is_ours = reader.has_tensor(ENTRY)
        text = reader.get_tensor(ENTRY) if is_ours else b""
    if not is_ours:
        raise InputError(
            describe(
                f"checkpoint '{location.prefix}' wasn't saved by TensorOpt",
                got=f"no entry '{ENTRY}'",
                advice="restore it into the plain model with tf.train.Checkpoint, before the model is parallelised",
            )
        )
    metadata = Metadata.from_json(text, location.prefix)
    numbers = {number for number, count in location.data_files() if count == metadata.n_files}
    for number in range(metadata.n_files):
        if number not in numbers:
            file = f"{location.prefix}.data-{number:05d}-of-{metadata.n_files:05d}"
            raise InputError(
                describe(f"checkpoint '{location.prefix}' isn't whole", got=f"no file '{file}'", advice=RECOVER)
            )
    return metadata


RECOVER = "copy all of its files, or load another checkpoint"


@contextlib.contextmanager
def refusing_unreadable(location: CheckpointLocation) -> Iterator[None]:
    """Raise InputError, in one sentence, if TensorFlow or the system can't read a checkpoint within this context."""
    try:
        yield
    # TensorFlow's reader raises Python errors for some of its own, such as an IndexError for a file that was cut off.
    except (OSError, tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:
        raise InputError(
            describe(
                f"checkpoint '{location.prefix}' is damaged or not a checkpoint", got=f"'{reason(error)}'", advice=RECOVER
            )
        ) from error
