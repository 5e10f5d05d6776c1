"""Load a checkpoint into a plain Keras model and its optimizer, in one process without a plan."""

from __future__ import annotations

import os
from typing import Any

from ...common.errors import InputError, describe
from ...lowering.variables import StateEntry
from ...reschedule.layout import Layout
from ...reschedule.mesh import Mesh
from .loading import OTHER_MODEL, check_same, found_at, read_all
from .location import CheckpointLocation
from .metadata import Metadata
from .variable import MODEL


def load_checkpoint(path: str | os.PathLike[str], model: Any = None, optimizer: Any = None) -> Metadata:
    """Load a checkpoint's values into a plain Keras model, an optimizer, or both, in one process.

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
