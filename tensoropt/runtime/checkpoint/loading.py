"""Load a checkpoint: each rank reads the slices that are its shards, under any plan, mesh or number of ranks.

RestoreV2 reads any slice of a variable, however the variable was cut when it was saved. Rank 0 reads the metadata once, and
it is compared with the state before anything is changed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from ...common.errors import InputError, describe
from ...lowering.variables import StateEntry
from ..ranks import Processes
from .location import CheckpointLocation
from .metadata import Metadata, Saved, find_checkpoint, read_at, refusing_unreadable
from .objects import Objects
from .parts import Bounds, slice_spec
from .together import on_rank_0, together
from .variable import Variable, entry_of, variables_of

# The bytes that are read before they are assigned to variables: enough to keep the disk busy, few beside a model's.
BATCH_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """A slice of a saved variable, and the variable to which it is assigned.

    If ``bounds`` isn't None, the entry is read completely, and these elements of it are assigned.
    """

    entry: str
    spec: str
    dtype: str
    n_bytes: int
    bounds: Bounds | None
    target: tf.Variable


def read_metadata(path: str | os.PathLike[str]) -> Metadata:
    """Return a checkpoint's metadata: its variables, the objects that own them, and the JSON that was saved with it.

    Args:
        path: the prefix, or a folder, of which the latest checkpoint is read.

    Raises:
        InputError: there is no such checkpoint, it wasn't saved by TensorOpt, or it is incomplete.
    """
    return read_at(find_checkpoint(path))


def restore(
    path: str | os.PathLike[str], entries: Sequence[StateEntry], processes: Processes, objects: Objects | None = None
) -> Metadata:
    """Assign a checkpoint's values to a state. All ranks call it together.

    The state must have either all or none of the checkpoint's variables of the model, and likewise of the optimizer: weights
    can be loaded without the optimizer.

    Args:
        path: the prefix, or a folder, of which the latest checkpoint is loaded.
        entries: the state; equal on all ranks except for the shards.
        processes: the processes that take part.
        objects: the user's objects. If given, the variables of Keras objects are found by their position and not by their
            names, which Keras numbers again when a model is built again.

    Returns:
        The checkpoint's metadata.

    Raises:
        InputError: there is no such checkpoint, it is of another model, damaged or incomplete. Some variables have new
            values only if the damage is found while the values are read.
    """
    location, metadata = on_rank_0(processes, lambda: found_at(path))
    variables = variables_of(entries)
    saved = check_same(location, metadata, variables, renamed(metadata, objects.order() if objects is not None else {}))
    together(processes, lambda: read_all(location, variables, saved))
    return metadata


def found_at(path: str | os.PathLike[str]) -> tuple[CheckpointLocation, Metadata]:
    """Return a checkpoint's place and metadata; raise InputError like :func:`read_metadata`."""
    location = find_checkpoint(path)
    return location, read_at(location)


def renamed(metadata: Metadata, order: Mapping[str, Sequence[str | None]]) -> dict[str, str]:
    """Return the saved names of variables that have other names now, by their position in the user's objects."""
    names = {}
    for root, current in order.items():
        saved = metadata.objects.get(root, ())
        if len(saved) == len(current):
            names.update({name: saved_name for name, saved_name in zip(current, saved, strict=True) if name and saved_name})
    return names


def check_same(
    location: CheckpointLocation, metadata: Metadata, variables: Sequence[Variable], names: Mapping[str, str]
) -> list[Saved]:
    """Return the saved variable for each of these variables.

    Raises:
        InputError: a variable is missing on one side, or has another shape or type.
    """
    saved_variables = metadata.by_name
    fault = f"checkpoint '{location.prefix}' is of another model"
    matches = []
    for variable in variables:
        saved = saved_variables.get(names.get(variable.name, variable.name))
        if saved is None or (saved.shape, saved.dtype) != (variable.shape, variable.dtype):
            text = f"no variable '{variable.name}'" if saved is None else f"variable '{saved.name}' as {saved}"
            raise InputError(describe(fault, got=text, expected=f"'{variable.name}' as {variable}", advice=OTHER_MODEL))
        matches.append(saved)
    names_read = {saved.name for saved in matches}
    groups = {name.split("/")[0] for name in names_read}
    for saved in metadata.variables:
        if saved.name not in names_read and saved.name.split("/")[0] in groups:
            raise InputError(
                describe(fault, got=f"variable '{saved.name}' as {saved}", expected="no such variable", advice=OTHER_MODEL)
            )
    return matches


OTHER_MODEL = "load it into the model that it was saved from"


def read_all(location: CheckpointLocation, variables: Sequence[Variable], saved: Sequence[Saved]) -> None:
    """Read the shards that this process holds of these variables from the saved ones, a few at a time."""
    batch: list[Wanted] = []
    for variable, source in zip(variables, saved, strict=True):
        for rank, target in zip(variable.ranks, variable.shards, strict=True):
            request = _read_request(variable, source.name, rank, target)
            if request.n_bytes:
                batch.append(request)
        if sum(request.n_bytes for request in batch) >= BATCH_BYTES:
            _read(location, batch)
            batch = []
    if batch:
        _read(location, batch)


def _read_request(variable: Variable, name: str, rank: int, target: tf.Variable) -> Wanted:
    bounds = variable.layout.bounds(variable.shape, rank)
    local = variable.layout.local_shape(variable.shape, rank)
    n_bytes = tf.TensorShape(local).num_elements() * variable.item_bytes
    if variable.in_slices:
        return Wanted(entry_of(name), slice_spec(variable.shape, bounds), variable.dtype, n_bytes, None, target)
    cut = bounds if variable.layout.split_axes else None
    return Wanted(entry_of(name), "", variable.dtype, n_bytes, cut, target)


def _read(location: CheckpointLocation, batch: Sequence[Wanted]) -> None:
    with refusing_unreadable(location), tf.device("CPU:0"):
        values = tf.raw_ops.RestoreV2(
            prefix=location.prefix,
            tensor_names=[request.entry for request in batch],
            shape_and_slices=[request.spec for request in batch],
            dtypes=[tf.as_dtype(request.dtype) for request in batch],
        )
    for request, value in zip(batch, values, strict=True):
        if request.bounds is not None:
            begin = [start for start, _ in request.bounds]
            value = tf.slice(value, begin, [end - start for start, end in request.bounds])
        request.target.assign(value)
