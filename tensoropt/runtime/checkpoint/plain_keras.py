"""Load a checkpoint into a plain Keras model and its optimizer, in one process without a plan."""

from __future__ import annotations

import os
from typing import Any

from ...common.errors import InputError, describe
from ...reschedule.layout import Layout
from ...reschedule.mesh import Mesh
from .loading import OTHER_MODEL, found_at, read_all
from .location import CheckpointLocation
from .metadata import Metadata, Saved
from .variable import Variable


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
    pairs = [pair for root, value in roots.items() for pair in _pairs(location, metadata, root, value)]
    variables = [_plain(variable, saved) for variable, saved in pairs]
    read_all(location, variables, [saved for _, saved in pairs])
    return metadata


def _pairs(location: CheckpointLocation, metadata: Metadata, root: str, value: Any) -> list[tuple[Any, Saved]]:
    names = metadata.objects.get(root)
    if names is None:
        raise InputError(
            describe(
                f"checkpoint '{location.prefix}' has no Keras {root}",
                got=f"variables of {sorted(metadata.objects) or 'none'}",
            )
        )
    variables = value.variables
    by_name = metadata.by_name
    what = f"checkpoint '{location.prefix}' is of another {root}"
    for variable, name in zip(variables, names, strict=False):
        saved = by_name.get(name or "")
        expected = Saved(variable.path, tuple(variable.shape), variable._value.dtype.name)
        if saved is not None and (saved.shape, saved.dtype) != (expected.shape, expected.dtype):
            raise InputError(
                describe(
                    what, got=f"'{saved.name}' as {saved}", expected=f"'{expected.name}' as {expected}", advice=OTHER_MODEL
                )
            )
    if len(variables) != len(names):
        raise InputError(describe(what, got=f"{len(names)} variables", expected=len(variables), advice=OTHER_MODEL))
    return [(variable, by_name[name]) for variable, name in zip(variables, names, strict=True) if name]


def _plain(variable: Any, saved: Saved) -> Variable:
    """Return a Keras variable as one replicated shard."""
    layout = Layout.replicated(Mesh.of(1), len(saved.shape))
    return Variable(saved.name, saved.shape, saved.dtype, layout, (variable._value,))
