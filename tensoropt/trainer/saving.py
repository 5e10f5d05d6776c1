"""A trainer's state outside of the ranks: in checkpoints, in Keras's file formats, and in Keras models."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ..common.errors import InputError, TensorOptError, short
from ..common.source_lines import running_line
from ..lowering.variables import StateEntry
from ..runtime.checkpoint import Objects, name_of
from .live import LiveValues
from .objective import KerasObjective
from .plain import counterparts, plain_optimizer
from .programs import inner
from .ranks import Ranks

KERAS_SUFFIXES = (".keras", ".h5")
Pairs = list[tuple[keras.Variable, StateEntry]]


@dataclass(frozen=True)
class Position:
    """Where a run is.

    Attributes:
        epoch: the one that runs, from 0.
        step: how many batches of it were taken.
        opened: how often the dataset was opened before the opening that goes on, or the next one.
        taken: how many batches of that were taken.
    """

    epoch: int = 0
    step: int = 0
    opened: int = 0
    taken: int = 0


def is_keras_format(path: str | os.PathLike[str]) -> bool:
    """Whether a path ends as Keras's files do."""
    return os.fspath(path).endswith(KERAS_SUFFIXES)


@dataclass(frozen=True)
class Saving:
    """Attributes:
    objective: the user's model, with what it is trained for.
    optimizer: the user's.
    ranks: hold the values.
    key_of: the key of one of the user's variables in the ranks' state; None for one that no program uses.
    live: the values on the ranks.
    """

    objective: KerasObjective
    optimizer: keras.optimizers.Optimizer
    ranks: Ranks
    key_of: Callable[[Any], str | None]
    live: LiveValues

    @property
    def model(self) -> keras.Model:
        return self.objective.inner

    # Checkpoints

    @cached_property
    def objects(self) -> Objects:
        """The user's model and optimizer as a checkpoint names their variables."""
        optimizer, pairs = self._plain_optimizer(is_empty=True)
        pairs = [*self._pairs(self.model), *pairs]
        names = [(variable, name_of(entry)) for variable, entry in pairs]
        return Objects({"model": self.model, "optimizer": optimizer}, names)

    def save(self, path: str, position: Position, max_to_keep: int | None) -> None:
        """Save a checkpoint; all ranks call it together, or rank 0 while it leads."""
        self.ranks.save(path, {"position": asdict(position)}, max_to_keep)

    def load(self, path: str) -> Position:
        """Go on from a checkpoint, as :meth:`save`; where in the dataset it was saved."""
        return Position(**self.ranks.restore(path).get("position", {}))

    # Keras's formats

    def write(self, path: str, save: Callable[[keras.Model], Any]) -> None:
        """Have rank 0 write a file of Keras's, from the trained values.

        Raises:
            TensorOptError: it couldn't be written.
        """

        def action() -> None:
            with self.as_trained() as (model, _):
                try:
                    save(model)
                except OSError as error:
                    reason = error.strerror or error
                    raise TensorOptError(f"'{path}' can't be saved: {reason}; make room, or save elsewhere") from error

        self.ranks.lead(action)

    def read(self, path: str, load: Callable[[keras.Model], Any]) -> None:
        """Have rank 0 read a file of Keras's, and give the ranks its values.

        Raises:
            InputError: the file is missing, or of another model.
        """

        def action() -> None:
            with self.as_trained() as (model, pairs):
                try:
                    load(model)
                except (OSError, ValueError) as error:
                    first = str(error).strip().splitlines()[0]
                    raise InputError(f"'{path}' can't be loaded into model '{model.name}': {first}") from error
                for variable, entry in pairs:
                    self.ranks.assign(entry.key, inner(variable).numpy())

        self.ranks.lead(action)

    @contextmanager
    def as_trained(self) -> Iterator[tuple[keras.Model, Pairs]]:
        """While this lasts, the user's model on rank 0 has the trained values, compiled with all it is trained for.

        Only rank 0 while it leads, or a process alone, may ask for it. Gives the model, and its variables and those of its
        optimizer with their entries on the ranks.
        """
        model = self.model
        attributes, values = dict(vars(model)), [inner(variable).numpy() for variable in model.variables]
        with self.live.own():
            try:
                optimizer, pairs = self._plain_optimizer()
                pairs = [*self._pairs(model), *pairs]
                self._fill(pairs)
                self.objective.compilation.apply(model, optimizer)
                yield model, pairs
            finally:
                vars(model).clear()
                vars(model).update(attributes)
                for variable, value in zip(model.variables, values, strict=True):
                    inner(variable).assign(value)

    def _plain_optimizer(self, is_empty: bool = False) -> tuple[keras.optimizers.Optimizer, Pairs]:
        with self.live.own():
            optimizer, made = plain_optimizer(self.optimizer, self.model, is_empty)
        keys = [self.key_of(inner(variable)) for variable in self.model.trainable_variables]
        return optimizer, counterparts(made, keys, self.ranks.optimizer.state())

    # Models

    def export_to(self, model: keras.Model) -> None:
        """Copy the trained values into a Keras model of the same structure.

        Raises:
            InputError: the model has other variables.
        """
        _check_alike(self.model, model)
        self._fill(self._pairs(model))
        if model is self.model:
            self.ranks.changed.clear()

    def values_of(self, variables: list[keras.Variable]) -> list[np.ndarray]:
        """The trained values of variables of the user's model; a variable that no program uses has its own."""
        keys = [self.key_of(inner(variable)) for variable in variables]
        found = dict(self.ranks.values(key for key in keys if key is not None))
        own = map(inner, variables)
        return [variable.numpy() if key is None else found[key] for variable, key in zip(own, keys, strict=True)]

    def assign(self, variables: list[keras.Variable], values: Any) -> None:
        """Give variables of the user's model other values, on the ranks; none of them before all are found right.

        Raises:
            InputError: there are more or fewer values, one has another shape or no numbers, or ranks give different ones.
        """

        def checked() -> dict[str, np.ndarray]:
            arrays = _fitting(self.model.name, variables, values)
            keys = [self.key_of(inner(variable)) for variable in variables]
            return {key: array for key, array in zip(keys, arrays, strict=True) if key is not None}

        self.ranks.assign_same(checked)

    def _pairs(self, model: keras.Model) -> Pairs:
        """A model's variables, with the entries of their counterparts in the user's model."""
        keys = [self.key_of(inner(variable)) for variable in self.model.variables]
        state = self.ranks.state
        return [(variable, state[key]) for variable, key in zip(model.variables, keys, strict=True) if key is not None]

    def _fill(self, pairs: Pairs) -> None:
        by_key = {entry.key: variable for variable, entry in pairs}
        for key, value in self.ranks.values(by_key):
            inner(by_key[key]).assign(value)


def _fitting(name: str, variables: list[keras.Variable], values: Any) -> list[np.ndarray]:
    """Return values as arrays of the variables' types.

    Raises:
        InputError: there are more or fewer, or one has another shape or no numbers.
    """
    advice, call = "give them as trainer.get_weights() does", f"set_weights ({running_line()})"
    if not isinstance(values, (list, tuple)):
        got = short(values)
        raise InputError(f"{call} takes a list of {len(variables)} arrays for model '{name}', got {got}; {advice}")
    if len(values) != len(variables):
        raise InputError(f"{call} got {len(values)} arrays, expected {len(variables)} for model '{name}'; {advice}")
    arrays = []
    for i, (variable, value) in enumerate(zip(variables, values, strict=True)):
        which = f"{call} got at place {i}, for '{variable.path}' of model '{name}',"
        try:
            array = np.asarray(value)
            dtype = tf.as_dtype(array.dtype)
        except (ValueError, TypeError) as error:
            raise InputError(f"{which} {short(value)}, expected an array of numbers; {advice}") from error
        if not (dtype.is_floating or dtype.is_integer or dtype.is_bool):
            raise InputError(f"{which} type {array.dtype}, expected {inner(variable).dtype.name}; {advice}")
        if array.shape != tuple(variable.shape):
            raise InputError(f"{which} shape {list(array.shape)}, expected {list(variable.shape)}; {advice}")
        arrays.append(array.astype(inner(variable).dtype.as_numpy_dtype))
    return arrays


def _check_alike(model: keras.Model, other: Any) -> None:
    """Hold another model's variables against those of the model that was trained.

    Raises:
        InputError: they differ in number or shape; the message names the first.
    """
    if not isinstance(other, keras.Model):
        raise InputError(f"export_to takes a keras.Model of the structure of '{model.name}', got {type(other).__name__}")
    ours, theirs = model.variables, other.variables
    for variable, target in zip(ours, theirs, strict=False):
        if variable.shape != target.shape:
            raise InputError(
                f"model '{other.name}' has variable '{target.path}' of shape {list(target.shape)} where '{model.name}' has "
                f"'{variable.path}' of shape {list(variable.shape)}; give a model of the same structure"
            )
    if len(ours) != len(theirs):
        raise InputError(
            f"model '{other.name}' has {len(theirs)} variables, '{model.name}', which was trained, has {len(ours)}; give a "
            "model of the same structure"
        )
