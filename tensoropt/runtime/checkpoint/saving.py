"""Save a checkpoint: each rank writes its parts into its own files, which rank 0 joins into one checkpoint.

1. Rank 0 takes the prefix's lock (``lock.py``) and makes an empty folder beside the target (``location.py``).
2. Each rank writes its parts (``parts.py``) with SaveV2, a file for each gigabyte. The only values that ranks exchange are
   those of variables whose type can't be saved in slices, which one rank collects.
3. Rank 0 writes the checkpoint's metadata, joins the files with MergeV2Checkpoints, which rewrites only their small indices,
   and puts the result in its place.

After each step the ranks agree on whether it succeeded on all.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from ...common.errors import InputError, TensorOptError, describe
from ...common.memory_units import memory_text
from ...lowering.variables import StateEntry
from ...profiling.available_memory import available_memory_bytes
from ..failures.interruptions import say
from ..ranks import Processes
from ..together import on_rank_0, together
from .location import CheckpointLocation, keep_newest, make_safe, writing
from .metadata import ENTRY as METADATA
from .metadata import Metadata, Saved, read_at
from .objects import COUNTER, Objects, object_graph
from .objects import ENTRY as OBJECT_GRAPH
from .parts import VariablePart, parts_of_device
from .room import WRITES, Room, give_way, started
from .variable import check_names, entry_name, entry_of, in_slices

# The bytes that one call of SaveV2 writes at most, about, so that copies of parts never take more memory.
SHARD_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Item:
    """One entry for SaveV2: a complete tensor, or the slice that ``spec`` names.

    ``make`` returns the tensor; it is called only when the entry is written.
    """

    entry: str
    spec: str
    n_bytes: int
    make: Callable[[], Any]
    is_copy: bool = False

    def read(self) -> Item:
        """Return the item with the present value: a CPU's is shared until it is assigned to, a GPU's is copied."""
        with tf.device("CPU:0"):
            source = self.make()
            value = tf.identity(source)
        return replace(self, make=lambda: value, is_copy=getattr(source, "device", "") != value.device)

    def copied(self, room: Room) -> Item:
        """Return the item with a copy of what was read, if there is room, so that no step has to make it."""
        with tf.device("CPU:0"):
            value = self.make() if self.is_copy else room.copied(self.make())
        return replace(self, make=lambda: value)


def save(
    prefix: str | os.PathLike[str],
    entries: Sequence[StateEntry],
    processes: Processes,
    metadata: Mapping[str, Any] | None = None,
    *,
    objects: Objects | None = None,
    number: int | None = None,
    max_to_keep: int | None = None,
) -> str:
    """Save a state as one checkpoint in TensorFlow's format. All ranks call it together.

    Args:
        prefix: ``folder/name``. The folder is made if it doesn't exist, and must be shared by all machines. An existing
            checkpoint stays complete until the new one takes its place.
        entries: the state; equal on all ranks except for the shards.
        metadata: JSON to keep in the checkpoint.
        objects: the user's model and optimizer, for ``tf.train.Checkpoint``; only rank 0's is used.
        number: a number such as the step, which makes the prefix ``folder/name-number``, and is the save counter in the
            checkpoint.
        max_to_keep: how many of the newest checkpoints to keep of those listed in the folder's ``checkpoint`` file.

    Returns:
        The prefix with its number.

    Raises:
        InputError: the folder can't be written, two variables have one name, or the metadata isn't JSON.
        TensorOptError: another run saves to this prefix, or writing failed, on this rank or another one. The files that were
            there before are unchanged.
    """
    if max_to_keep is not None and max_to_keep < 1:
        raise InputError(describe("max_to_keep counts checkpoints", got=max_to_keep, expected="1 or more, or None for all"))
    path = os.fspath(prefix) if number is None else f"{os.fspath(prefix)}-{number}"
    counter = 1 if number is None else number
    return PendingSave(path, entries, processes, Beside(metadata or {}, objects, counter), max_to_keep).finish()


@dataclass(frozen=True)
class Beside:
    """What a checkpoint holds beside the variables of a model and its optimizer.

    Attributes:
        metadata, objects: as for :func:`save`.
        entries: further entries by name, arrays or bytes; only rank 0's are saved.
    """

    metadata: Mapping[str, Any]
    objects: Objects | None
    counter: int = 1
    entries: Mapping[str, Any] = field(default_factory=dict)


class PendingSave:
    """A checkpoint that is being written. All ranks make it together, and advance it together until it is in its place.

    Args:
        prefix, entries, processes, max_to_keep: as for :func:`save`.
        beside: what the checkpoint holds beside the state.
        room: memory for a copy of the state. If all ranks have it, threads write, and the state may change meanwhile: a read
            shares a variable's memory until the variable is assigned to, or a thread has copied it.
    """

    def __init__(
        self,
        prefix: str,
        entries: Sequence[StateEntry],
        processes: Processes,
        beside: Beside,
        max_to_keep: int | None,
        *,
        room: Room | None = None,
    ) -> None:
        try:
            json.dumps(beside.metadata)
        except (TypeError, ValueError) as error:
            raise InputError(describe("a checkpoint's metadata must be JSON", got=f"'{error}'")) from error
        self._location, self._processes, self._max_to_keep = CheckpointLocation.of(prefix), processes, max_to_keep
        check_names(entries)
        self._own = _own_items(entries, beside)
        self._lock = self._location.lock()
        self._files: list[str] = []
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        self._joins, self._room = False, room
        try:
            on_rank_0(processes, lambda: self._location.prepare(self._lock))
            together(processes, lambda: _find_scratch(self._location, processes))
            self._items = _items(entries, processes)
            self._is_apart = processes.gather_max(float(room is None)) == 0
            if self._is_apart:
                self._items = {device: [item.read() for item in items] for device, items in self._items.items()}
            self._run(self._write)
        except BaseException:
            self._release()
            raise

    def _run(self, action: Callable[[], None]) -> None:
        """Do a part of the work, in a thread if that is apart; an error is raised where the ranks can agree on it."""

        def act() -> None:
            try:
                action()
            except Exception as error:
                self._error = error

        if self._is_apart:
            self._thread = started(act)
        else:
            act()

    def _write(self) -> None:
        if self._is_apart and self._room is not None:
            for items in self._items.values():
                for i in reversed(range(len(items))):  # steps often assign to the last ones first
                    items[i] = items[i].copied(self._room)
            give_way(WRITES)
        for device, items in self._items.items():
            self._files += _write_shards(self._location, device, items)
        self._items = {}

    @property
    def is_busy(self) -> bool:
        """Return whether a thread of this rank is at work, for which :meth:`advance` would wait."""
        return self._thread is not None and self._thread.is_alive()

    def advance(self) -> bool:
        """Join the ranks' parts once they are written, or else return True once that is done.

        Raises:
            TensorOptError: writing failed, on this rank or another one. The files that were there before are unchanged.
        """
        if self._thread is not None:
            self._thread.join()
        try:
            together(self._processes, self._check)
            if not self._joins:
                files = [file for group in self._processes.gather(self._files) for file in group]
                self._joins = True
                if self._processes.rank == 0:
                    self._run(lambda: _join(self._location, files, self._own, self._max_to_keep))
                return False
        except BaseException:
            self._release()
            raise
        self._release()
        return True

    def finish(self) -> str:
        """Advance it until it is in its place, and return its prefix; raise TensorOptError like :meth:`advance`."""
        while not self.advance():
            pass
        return self._location.prefix

    def _check(self) -> None:
        self._items = {}
        if self._error is not None:
            raise self._error

    def _release(self) -> None:
        if self._room is not None:
            self._room.clear()
        if self._lock.is_held:
            self._location.discard()
            self._lock.release()


def room_for(entries: Sequence[StateEntry], processes: Processes, *, is_reported: bool = False) -> Room | None:
    """Return memory for a copy of what this process saves of a state; None if it hasn't so much, which it may say."""
    n_bytes = Room.bytes_for(part.n_bytes for device in _devices(entries) for part in parts_of_device(entries, device))
    with contextlib.suppress(MemoryError):  # at a limit of this process
        if n_bytes < available_memory_bytes(processes.local_size):
            return Room(n_bytes)
    if is_reported:
        say(f"training waits for a save: a second copy of {memory_text(n_bytes)} of the state has no room in memory")
    return None


def _find_scratch(location: CheckpointLocation, processes: Processes) -> None:
    if not location.scratch.is_dir():
        raise InputError(_not_shared(location, f"no '{location.folder}' of rank 0 on {processes.hosts[processes.rank]}"))


def _not_shared(location: CheckpointLocation, got: str) -> str:
    fault = f"checkpoint '{location.prefix}' needs a folder that all ranks share"
    return describe(fault, got=got, advice="save to a shared file system")


def _devices(entries: Sequence[StateEntry]) -> set[int]:
    """Return the devices of this process that have shards."""
    return {entry.first_device + rank for entry in entries for rank in entry.ranks}


def _items(entries: Sequence[StateEntry], processes: Processes) -> dict[int, list[Item]]:
    """Return, for each device of this process, the items that it writes."""
    devices = sorted(_devices(entries) | {processes.rank})
    items = {device: [_part_item(part, device) for part in parts_of_device(entries, device)] for device in devices}
    for turn, entry in enumerate(entry for entry in entries if not in_slices(entry)):
        value = _global_value(entry, processes, writer=turn % processes.size)
        if value is not None:
            items[processes.rank].append(Item(entry_of(entry_name(entry)), "", entry.n_bytes, value))
    return items


def _part_item(part: VariablePart, device: int) -> Item:
    variable = part.variable
    rank = device - variable.first_device
    shard, position = variable.layout.bounds(variable.shape, rank), variable.ranks.index(rank)

    def make() -> tf.Tensor:
        value = variable.variables[position].value()
        if part.bounds == shard:
            return value
        begin = [start - first for (start, _), (first, _) in zip(part.bounds, shard, strict=True)]
        return tf.slice(value, begin, [end - start for start, end in part.bounds])

    return Item(entry_of(entry_name(variable)), part.spec, part.n_bytes, make)


def _global_value(entry: StateEntry, processes: Processes, writer: int) -> Callable[[], Any] | None:
    """Return, on the writing process, a function that makes the global value of a variable that can't be saved in slices.

    Return None on the other processes.
    """
    if entry.is_whole_on(processes.size):
        return entry.variables[0].value if processes.rank == writer else None
    collected = processes.collect(entry.own_shards(), writer)
    return None if collected is None else partial(entry.joined, collected)


def _write_shards(location: CheckpointLocation, device: int, items: Sequence[Item]) -> list[str]:
    """Write items into files of a device, of about ``SHARD_BYTES`` each, and return the files' prefixes."""
    prefixes, starts = [], itertools.accumulate((item.n_bytes for item in items), initial=0)
    pairs = zip(starts, items, strict=False)
    for number, run in itertools.groupby(pairs, key=lambda pair: pair[0] // SHARD_BYTES):
        prefixes.append(str(location.scratch / f"rank-{device:05d}-{number:05d}"))
        _write(location, prefixes[-1], [item for _, item in run])
    return prefixes


def _write(location: CheckpointLocation, prefix: str, items: Sequence[Item]) -> None:
    file = Path(f"{prefix}.data-00000-of-00001")
    with writing(location, file, sum(item.n_bytes for item in items)):
        # Shards on a GPU are copied to the host to be written.
        with tf.device("CPU:0"):
            tf.raw_ops.SaveV2(
                prefix=prefix,
                tensor_names=[item.entry for item in items],
                shape_and_slices=[item.spec for item in items],
                tensors=[item.make() for item in items],
            )
        make_safe(file)


def _own_items(entries: Sequence[StateEntry], beside: Beside) -> Callable[[int], list[Item]]:
    """Return a function of a checkpoint's number of data files, which returns its own entries.

    They are the metadata, the graph of the user's objects, the save counter, and what is beside. What needs Keras is made at
    once, and not in a thread.
    """
    saved = tuple(map(Saved.of, entries))
    order, graph = beside.objects.order() if beside.objects is not None else {}, object_graph(beside.objects)

    def items(n_files: int) -> list[Item]:
        text = Metadata(saved, n_files, order, beside.metadata).to_json().encode()
        return [
            Item(METADATA, "", len(text), lambda: tf.constant(text)),
            Item(OBJECT_GRAPH, "", len(graph), lambda: tf.constant(graph)),
            Item(entry_of(COUNTER), "", 8, lambda: tf.constant(beside.counter, tf.int64)),
            *(Item(key, "", memoryview(value).nbytes, partial(tf.constant, value)) for key, value in beside.entries.items()),
        ]

    return items


def _join(
    location: CheckpointLocation, files: Sequence[str], own_items: Callable[[int], list[Item]], max_to_keep: int | None
) -> None:
    """Join the ranks' files, put the checkpoint in its place, and enter it in the folder's list."""
    for file in files:
        if not Path(f"{file}.index").is_file():
            raise TensorOptError(_not_shared(location, f"no '{file}.index' on rank 0's machine"))
    parts = list(files)
    # One more file if the existing checkpoint has the same number, and thus files of the same names.
    counts = {count for _, count in location.data_files()} if location.index.exists() else set()
    with contextlib.suppress(TensorOptError):
        counts = {read_at(location).n_files}
    n_own = 2 if len(files) + 1 in counts else 1
    items = own_items(len(files) + n_own)
    for i in range(n_own):
        parts.append(str(location.scratch / f"about-{i}"))
        _write(location, parts[-1], items[i::n_own])
    target = location.scratch / location.name
    with writing(location, target.with_name(f"{location.name}.index"), 0), tf.device("CPU:0"):
        tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=str(target), delete_old_dirs=False)
    location.commit()
    keep_newest(location, max_to_keep)
