"""Loading: each rank reads the slices that are its pieces, under whatever plan, mesh or number of ranks.

RestoreV2 reads any slice of a variable, however it was cut when it was saved. What the checkpoint says about itself is read
once, by rank 0, and held against the state before anything is changed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from ...common.errors import InputError, describe
from ...lowering.variables import StateEntry
from ..ranks import Processes
from .metadata import Metadata, Saved, find, read_at, reading
from .objects import Objects
from .parts import Bounds, slice_spec
from .place import Place
from .together import on_rank_0, together
from .variable import Variable, entry_of, variables_of

# How much is read before it is handed to the variables: enough to keep the disk busy, little beside a model.
BATCH_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """A slice of a saved variable, and the variable that takes it."""

    entry: str
    spec: str
    dtype: str
    n_bytes: int
    bounds: Bounds | None
    target: tf.Variable


def read_metadata(path: str | os.PathLike[str]) -> Metadata:
    """What a checkpoint says about itself: variables, whose they are, and the JSON that was saved with it.

    Args:
        path: the prefix, or a folder: then its latest checkpoint.

    Raises:
        InputError: there is none, it wasn't saved by TensorOpt, or it isn't whole.
    """
    return read_at(find(path))


def restore(
    path: str | os.PathLike[str],
    entries: Sequence[StateEntry],
    ranks: Sequence[int],
    processes: Processes,
    objects: Objects | None = None,
) -> Metadata:
    """Give a state the values of a checkpoint; all ranks call it together.

    Of the model and of the optimizer, the state must have all variables that the checkpoint has, or none: weights can be
    loaded without the optimizer.

    Args:
        path: the prefix, or a folder: then its latest checkpoint.
        entries: the state; equal on all ranks but for the pieces.
        ranks: the ranks that this process builds, in the order of the entries' pieces.
        processes: the processes that take part.
        objects: where it is given, the variables of Keras objects are found by their position and not by their names,
            which Keras numbers again when a model is built again.

    Returns:
        What the checkpoint says about itself.

    Raises:
        InputError: there is no such checkpoint, it is of another model, damaged or not whole. Only if it turns out to be
            damaged while it is read, some variables have new values.
    """
    place, metadata = on_rank_0(processes, lambda: found_at(path))
    variables = variables_of(entries)
    saved = check_same(place, metadata, variables, renamed(metadata, objects.order() if objects is not None else {}))
    together(processes, lambda: read_all(place, variables, saved, ranks))
    return metadata


def found_at(path: str | os.PathLike[str]) -> tuple[Place, Metadata]:
    """Where a checkpoint is and what it says; raises InputError as :func:`read_metadata` does."""
    place = find(path)
    return place, read_at(place)


def renamed(metadata: Metadata, order: Mapping[str, Sequence[str | None]]) -> dict[str, str]:
    """The saved names of variables that have other names now, by their position in the user's objects."""
    names = {}
    for root, current in order.items():
        saved = metadata.objects.get(root, ())
        if len(saved) == len(current):
            names.update({new: old for new, old in zip(current, saved, strict=True) if new and old})
    return names


def check_same(place: Place, metadata: Metadata, variables: Sequence[Variable], names: Mapping[str, str]) -> list[Saved]:
    """The saved variables for these, in their order.

    Raises:
        InputError: a variable is missing on one side, or has another shape or type.
    """
    by_name = metadata.by_name
    what = f"checkpoint '{place.prefix}' is of another model"
    found = []
    for variable in variables:
        saved = by_name.get(names.get(variable.name, variable.name))
        if saved is None or (saved.shape, saved.dtype) != (variable.shape, variable.dtype):
            got = f"no variable '{variable.name}'" if saved is None else f"variable '{saved.name}' as {saved}"
            raise InputError(describe(what, got=got, expected=f"'{variable.name}' as {variable}", advice=OTHER_MODEL))
        found.append(saved)
    taken = {saved.name for saved in found}
    groups = {name.split("/")[0] for name in taken}
    for saved in metadata.variables:
        if saved.name not in taken and saved.name.split("/")[0] in groups:
            raise InputError(
                describe(what, got=f"variable '{saved.name}' as {saved}", expected="no such variable", advice=OTHER_MODEL)
            )
    return found


OTHER_MODEL = "load it into the model that it was saved from"


def read_all(place: Place, variables: Sequence[Variable], saved: Sequence[Saved], ranks: Sequence[int]) -> None:
    """Read the ranks' pieces of these variables from the saved ones, a few at a time."""
    batch: list[Wanted] = []
    for variable, source in zip(variables, saved, strict=True):
        for rank, target in zip(ranks, variable.pieces, strict=True):
            wanted = _wanted(variable, source.name, rank, target)
            if wanted.n_bytes:
                batch.append(wanted)
        if sum(wanted.n_bytes for wanted in batch) >= BATCH_BYTES:
            _read(place, batch)
            batch = []
    if batch:
        _read(place, batch)


def _wanted(variable: Variable, name: str, rank: int, target: tf.Variable) -> Wanted:
    bounds = variable.layout.bounds(variable.shape, rank)
    local = variable.layout.local_shape(variable.shape, rank)
    n_bytes = tf.TensorShape(local).num_elements() * variable.item_bytes
    if variable.in_slices:
        return Wanted(entry_of(name), slice_spec(variable.shape, bounds), variable.dtype, n_bytes, None, target)
    cut = bounds if variable.layout.split_axes else None
    return Wanted(entry_of(name), "", variable.dtype, n_bytes, cut, target)


def _read(place: Place, batch: Sequence[Wanted]) -> None:
    with reading(place), tf.device("CPU:0"):
        values = tf.raw_ops.RestoreV2(
            prefix=place.prefix,
            tensor_names=[wanted.entry for wanted in batch],
            shape_and_slices=[wanted.spec for wanted in batch],
            dtypes=[tf.as_dtype(wanted.dtype) for wanted in batch],
        )
    for wanted, value in zip(batch, values, strict=True):
        if wanted.bounds is not None:
            begin = [start for start, _ in wanted.bounds]
            value = tf.slice(value, begin, [end - start for start, end in wanted.bounds])
        wanted.target.assign(value)
