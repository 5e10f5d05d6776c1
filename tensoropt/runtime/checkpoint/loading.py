"""Load a checkpoint: each rank reads the slices that are its shards, under any plan, mesh or number of ranks.

RestoreV2 reads any slice of a variable, however the variable was cut when it was saved. Rank 0 reads the metadata once, and
it is compared with the state before anything is changed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from ...common.errors import InputError, describe
from ...lowering.variables import StateEntry
from ...reschedule.layout import Layout
from ...reschedule.mesh import Mesh
from ..ranks import Processes
from ..together import on_rank_0, together
from .location import CheckpointLocation
from .metadata import Metadata, Saved, find_checkpoint, read_at, refusing_unreadable
from .objects import Objects
from .parts import VariablePart
from .variable import MODEL, check_names, entry_of, in_slices

# The bytes that are read before they are assigned to variables: enough to keep the disk busy, few beside a model's.
BATCH_BYTES = 256 << 20


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
        objects: the user's objects. If given, the variables of Keras objects are found by their position and not by their
            names, which Keras numbers again when a model is built again.

    Returns:
        The checkpoint's metadata.

    Raises:
        InputError: there is no such checkpoint, it is of another model, damaged or incomplete. Some variables have new
            values only if the damage is found while the values are read.
    """
    location, metadata = on_rank_0(processes, lambda: found_at(path))
    check_names(entries)
    saved = check_same(location, metadata, entries, renamed(metadata, objects.order() if objects is not None else {}))
    together(processes, lambda: read_all(location, entries, saved))
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
    location: CheckpointLocation, metadata: Metadata, entries: Sequence[StateEntry], names: Mapping[str, str]
) -> list[Saved]:
    """Return the saved variable for each variable of a state.

    Raises:
        InputError: a variable is missing on one side, or has another shape or type.
    """
    saved_variables = {saved.name: saved for saved in metadata.variables}
    fault = f"checkpoint '{location.prefix}' is of another model"
    matches = []
    for wanted in map(Saved.of, entries):
        saved = saved_variables.get(names.get(wanted.name, wanted.name))
        if saved is None or (saved.shape, saved.dtype) != (wanted.shape, wanted.dtype):
            text = f"no variable '{wanted.name}'" if saved is None else f"variable '{saved.name}' as {saved}"
            raise InputError(describe(fault, got=text, expected=f"'{wanted.name}' as {wanted}", advice=OTHER_MODEL))
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


def read_all(location: CheckpointLocation, entries: Sequence[StateEntry], saved: Sequence[Saved]) -> None:
    """Read the shards that this process holds of a state from the saved variables, a few at a time."""
    batch: list[tuple[VariablePart, str, tf.Variable]] = []
    for entry, source in zip(entries, saved, strict=True):
        for rank, target in zip(entry.ranks, entry.variables, strict=True):
            shard = VariablePart(entry, entry.layout.bounds(entry.shape, rank))
            if shard.n_bytes:
                batch.append((shard, entry_of(source.name), target))
        if sum(shard.n_bytes for shard, _, _ in batch) >= BATCH_BYTES:
            _read(location, batch)
            batch = []
    if batch:
        _read(location, batch)


def _read(location: CheckpointLocation, batch: Sequence[tuple[VariablePart, str, tf.Variable]]) -> None:
    """Assign to variables the shards of entries; of one that isn't saved in slices all is read."""
    with refusing_unreadable(location), tf.device("CPU:0"):
        values = tf.raw_ops.RestoreV2(
            prefix=location.prefix,
            tensor_names=[name for _, name, _ in batch],
            shape_and_slices=[shard.spec if in_slices(shard.variable) else "" for shard, _, _ in batch],
            dtypes=[tf.as_dtype(shard.variable.dtype) for shard, _, _ in batch],
        )
    for (shard, _, target), value in zip(batch, values, strict=True):
        if not in_slices(shard.variable) and shard.variable.layout.split_axes:
            begin = [start for start, _ in shard.bounds]
            value = tf.slice(value, begin, [end - start for start, end in shard.bounds])
        target.assign(value)


def load_checkpoint(path: str | os.PathLike[str], model: Any = None, optimizer: Any = None) -> Metadata:
    """Load a checkpoint's values into a plain Keras model, an optimizer, or both, in one process.

    >>> import keras, tempfile, tensoropt
    >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    >>> trainer = tensoropt.parallelize(model, "sgd", "mse", batch_size=4, cluster="v100-1x1", verbose=0)
    >>> trainer.save(path := tempfile.mkdtemp() + "/digits")
    >>> tensoropt.load_checkpoint(path, model).variables[0].shape
    (8, 1)

    Args:
        path: the prefix, or a folder, of which the latest checkpoint is loaded.
        model: a built model with the variables of the saved one.
        optimizer: an optimizer of the saved kind; it is built for ``model`` if it isn't yet.

    Returns:
        The checkpoint's metadata.

    Raises:
        InputError: there is no such checkpoint, it is of another model, damaged, incomplete, or saved without Keras.
    """
    location, metadata = found_at(path)
    roots = {root: value for root, value in (("model", model), ("optimizer", optimizer)) if value is not None}
    if model is not None and optimizer is not None and not optimizer.built:
        optimizer.build(model.trainable_variables)
    entries = [entry for root, value in roots.items() for entry in _entries(location, metadata, root, value)]
    read_all(location, entries, check_same(location, metadata, entries, {}))
    return metadata


def _entries(location: CheckpointLocation, metadata: Metadata, root: str, value: Any) -> list[StateEntry]:
    """Return Keras's variables, each as one replicated shard, by the names that those of their positions have when saved."""
    names = metadata.objects.get(root)
    if names is None:
        text = f"variables of {sorted(metadata.objects) or 'none'}"
        raise InputError(describe(f"checkpoint '{location.prefix}' has no Keras {root}", got=text))
    variables = [variable._value for variable in value.variables]
    if len(variables) != len(names):
        fault = f"checkpoint '{location.prefix}' is of another {root}"
        raise InputError(describe(fault, got=f"{len(names)} variables", expected=len(variables), advice=OTHER_MODEL))
    entries = []
    for variable, (kind, _, key) in zip(variables, ((name or "").partition("/") for name in names), strict=True):
        if kind:
            layout, step = Layout.replicated(Mesh.of(1), len(variable.shape)), None if kind == MODEL else kind
            entries.append(StateEntry(key, tuple(variable.shape), variable.dtype.name, layout, (variable,), (0,), step=step))
    return entries
