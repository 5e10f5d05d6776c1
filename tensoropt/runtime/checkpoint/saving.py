"""Saving: each rank writes its parts into files of its own, which rank 0 joins into one checkpoint.

1. Rank 0 takes the prefix's lock (``lock.py``) and makes an empty folder beside the target (``place.py``).
2. Each rank writes its parts (``parts.py``) with SaveV2, a file for each gigabyte. Nothing is communicated but variables of
   types that can't be saved in slices, which one rank collects.
3. Rank 0 writes what the checkpoint says about itself, joins the files with MergeV2Checkpoints, which rewrites only their
   small indices, and puts the result in its place.

After each step the ranks agree on whether it went well on all.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from ...common.errors import InputError, TensorOptError, describe
from ...lowering.variables import StateEntry
from ...sharding.local_shapes import piece_of
from ..ranks import Processes
from .lock import Lock
from .metadata import ENTRY as METADATA
from .metadata import Metadata, read_at
from .objects import COUNTER, Objects, object_graph
from .objects import ENTRY as OBJECT_GRAPH
from .parts import Part, holders_of, parts_of_rank, shards
from .place import Place, keep_newest, make_safe, writing
from .together import on_rank_0, together
from .variable import Variable, entry_of, variables_of


@dataclass(frozen=True, slots=True)
class Item:
    """What SaveV2 writes as an entry: a whole tensor, or the slice that ``spec`` says; made when it is its turn."""

    entry: str
    spec: str
    n_bytes: int
    make: Callable[[], Any]


def save(
    prefix: str | os.PathLike[str],
    entries: Sequence[StateEntry],
    ranks: Sequence[int],
    processes: Processes,
    metadata: Mapping[str, Any] | None = None,
    *,
    objects: Objects | None = None,
    number: int | None = None,
    max_to_keep: int | None = None,
) -> str:
    """Save a state as one checkpoint in TensorFlow's format; all ranks call it together.

    Args:
        prefix: ``folder/name``; the folder is made where it isn't there, and must be one that all machines share. A
            checkpoint that is there stays whole until the new one takes its place.
        entries: the state; equal on all ranks but for the pieces.
        ranks: the ranks that this process builds, in the order of the entries' pieces: one, or all of them.
        processes: the processes that take part.
        metadata: JSON to keep with it.
        objects: the user's model and optimizer, for ``tf.train.Checkpoint``; only rank 0's is used.
        number: makes the prefix ``folder/name-number``, such as the step, and is the counter of saves in it.
        max_to_keep: of the checkpoints that are listed in the folder's ``checkpoint`` file, remove all but so many newest.

    Returns:
        The prefix with its number.

    Raises:
        InputError: the folder can't be written; two variables of one name; metadata that isn't JSON.
        TensorOptError: another run saves to this prefix, or writing failed, on this rank or another one; what was there
            before is as it was.
    """
    if max_to_keep is not None and max_to_keep < 1:
        raise InputError(describe("max_to_keep counts checkpoints", got=max_to_keep, expected="1 or more, or None for all"))
    _check_json(metadata)
    place = Place.of(prefix if number is None else f"{os.fspath(prefix)}-{number}")
    variables = variables_of(entries)
    lock = place.lock()
    try:
        on_rank_0(processes, lambda: place.prepare(lock))
        together(processes, lambda: _find_scratch(place, processes))
        items = _items(variables, ranks, processes)
        written = together(processes, lambda: [_write_shards(place, rank, items[rank]) for rank in ranks])
        files = [file for of_process in processes.gather(written) for of_rank in of_process for file in of_rank]
        own = OwnEntries(variables, metadata or {}, objects, 1 if number is None else number)
        on_rank_0(processes, lambda: _join(place, files, own, lock, max_to_keep))
    finally:
        if lock.is_held:
            place.discard()
            lock.release()
    return place.prefix


def _check_json(metadata: Mapping[str, Any] | None) -> None:
    try:
        json.dumps(metadata)
    except (TypeError, ValueError) as error:
        raise InputError(describe("a checkpoint's metadata must be JSON", got=f"'{error}'")) from error


def _find_scratch(place: Place, processes: Processes) -> None:
    if not place.scratch.is_dir():
        raise InputError(
            describe(
                f"checkpoint '{place.prefix}' needs a folder that all ranks share",
                got=f"no '{place.folder}' of rank 0 on {processes.hosts[processes.rank]}",
                advice="save to a shared file system",
            )
        )


def _items(variables: Sequence[Variable], ranks: Sequence[int], processes: Processes) -> dict[int, list[Item]]:
    """By rank of this process, what it writes."""
    items = {rank: [_part_item(part, rank, i) for part in parts_of_rank(variables, rank)] for i, rank in enumerate(ranks)}
    wholes = [variable for variable in variables if not variable.in_slices]
    for turn, variable in enumerate(wholes):
        writer = turn % processes.size
        whole = _whole(variable, ranks, processes, writer)
        if whole is not None:
            items[ranks[0]].append(Item(entry_of(variable.name), "", variable.n_bytes, whole))
    return items


def _part_item(part: Part, rank: int, position: int) -> Item:
    variable = part.variable
    piece = variable.layout.bounds(variable.shape, rank)

    def make() -> tf.Tensor:
        value = variable.pieces[position].value()
        if part.bounds == piece:
            return value
        begin = [start - first for (start, _), (first, _) in zip(part.bounds, piece, strict=True)]
        return tf.slice(value, begin, [end - start for start, end in part.bounds])

    return Item(entry_of(variable.name), part.spec, part.n_bytes, make)


def _whole(variable: Variable, ranks: Sequence[int], processes: Processes, writer: int) -> Callable[[], Any] | None:
    """On the process that writes it, how to make the whole of a variable that can't be saved in slices."""
    if not variable.layout.split_axes:
        return variable.pieces[0].value if processes.rank == writer else None
    held = {
        rank: piece.numpy()
        for rank, piece in zip(ranks, variable.pieces, strict=True)
        if holders_of(variable.layout, rank)[0] == rank
    }
    collected = processes.collect(held, writer)
    if collected is None:
        return None

    def make() -> np.ndarray:
        whole = np.empty(variable.shape, tf.as_dtype(variable.dtype).as_numpy_dtype)
        for pieces in collected:
            for rank, piece in pieces.items():
                whole[piece_of(variable.layout, variable.shape, rank)] = piece
        return whole

    return make


def _write_shards(place: Place, rank: int, items: Sequence[Item]) -> list[str]:
    """Write items into files of this rank, and return their prefixes."""
    prefixes = []
    for i, shard in enumerate(shards(items)):
        prefixes.append(str(place.scratch / f"rank-{rank:05d}-{i:05d}"))
        _write(place, prefixes[-1], shard)
    return prefixes


def _write(place: Place, prefix: str, items: Sequence[Item]) -> None:
    file = Path(f"{prefix}.data-00000-of-00001")
    with writing(place, file, sum(item.n_bytes for item in items)):
        # Pieces on a GPU are copied to the host for the file.
        with tf.device("CPU:0"):
            tf.raw_ops.SaveV2(
                prefix=prefix,
                tensor_names=[item.entry for item in items],
                shape_and_slices=[item.spec for item in items],
                tensors=[item.make() for item in items],
            )
        make_safe(file)


@dataclass(frozen=True, slots=True, eq=False)
class OwnEntries:
    """What the checkpoint says about itself."""

    variables: Sequence[Variable]
    content: Mapping[str, Any]
    objects: Objects | None
    counter: int

    def items(self, n_files: int) -> list[Item]:
        order = self.objects.order() if self.objects is not None else {}
        text = Metadata.of(self.variables, order, self.content, n_files).to_json().encode()
        graph = object_graph(self.objects)
        return [
            Item(METADATA, "", len(text), lambda: tf.constant(text)),
            Item(OBJECT_GRAPH, "", len(graph), lambda: tf.constant(graph)),
            Item(entry_of(COUNTER), "", 8, lambda: tf.constant(self.counter, tf.int64)),
        ]


def _join(place: Place, files: Sequence[str], own: OwnEntries, lock: Lock, max_to_keep: int | None) -> None:
    """Join the ranks' files, put the checkpoint in its place, and enter it in the folder's list."""
    for file in files:
        if not Path(f"{file}.index").is_file():
            raise TensorOptError(
                describe(
                    f"checkpoint '{place.prefix}' needs a folder that all ranks share",
                    got=f"no '{file}.index' on rank 0's machine",
                    advice="save to a shared file system",
                )
            )
    joined = list(files)
    # One file more where the checkpoint that is there would have as many, and files of the same names.
    n_own = 2 if len(files) + 1 in _file_counts(place) else 1
    items = own.items(len(files) + n_own)
    for i, own_items in enumerate([items] if n_own == 1 else [items[:1], items[1:]]):
        joined.append(str(place.scratch / f"about-{i}"))
        _write(place, joined[-1], own_items)
    merged = place.scratch / place.name
    with writing(place, merged.with_name(f"{place.name}.index"), 0), tf.device("CPU:0"):
        tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=joined, destination_prefix=str(merged), delete_old_dirs=False)
    lock.check()
    place.commit()
    keep_newest(place, max_to_keep)


def _file_counts(place: Place) -> set[int]:
    """Of how many data files the checkpoint that is there is made; several where it isn't one of ours."""
    if not place.index.exists():
        return set()
    with contextlib.suppress(TensorOptError):
        return {read_at(place).n_files}
    return {count for _, count in place.data_files()}
