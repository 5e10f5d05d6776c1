"""Save and load a trainer's state: as checkpoints, as files in Keras's formats, and to and from Keras models."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ..common.errors import InputError, TensorOptError, cut, short
from ..common.source_lines import running_line
from ..lowering.variables import StateEntry
from ..optimizers.copies import build_variables, fresh_copy, inner_of
from ..optimizers.keras_optimizer import KerasOptimizer
from ..runtime.checkpoint import Objects, entry_name
from .capture.objective import KerasObjective
from .capture.programs import inner
from .trainer_ranks import TrainerRanks
from .variables.live import own_values

KERAS_SUFFIXES = (".keras", ".h5")
# What Keras, h5py and zipfile raise for files that are damaged or of another model.
_UNREADABLE = (
    *(OSError, EOFError, ValueError, TypeError, LookupError, AttributeError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error),
)
Pairs = list[tuple[keras.Variable, StateEntry]]


@dataclass(frozen=True)
class RunPosition:
    """A run's position in its epochs and in its dataset.

    Attributes:
        epoch: the running epoch, from 0.
        step: the number of batches of the epoch that were taken.
        opened: how often the dataset was opened before the current opening, or before the next one if none is open.
        taken: the number of batches that were taken from the current opening.
    """

    epoch: int = 0
    step: int = 0
    opened: int = 0
    taken: int = 0


def is_keras_format(path: str | os.PathLike[str]) -> bool:
    """Return whether a path has the suffix of a file in Keras's format."""
    return os.fspath(path).endswith(KERAS_SUFFIXES)


@dataclass(frozen=True)
class Saving:
    """The saving and loading of a trainer's state.

    Attributes:
        objective: the user's model, with its loss and metrics.
        optimizers: the user's optimizers, by the name of the training step that applies each first.
        ranks: all ranks, which hold the trained values.
        key_of: returns the key of one of the user's variables in the ranks' state; None if no program uses the variable.
    """

    objective: KerasObjective
    optimizers: Mapping[str, keras.optimizers.Optimizer]
    ranks: TrainerRanks
    key_of: Callable[[Any], str | None]

    @property
    def model(self) -> keras.Model:
        return self.objective.inner

    # Checkpoints

    @cached_property
    def objects(self) -> Objects:
        """The user's model and optimizer, with the names of their variables in a checkpoint."""
        copies, pairs = self._plain_optimizers(is_empty=True)
        pairs = [*self._pairs(self.model), *pairs]
        state = self.ranks.planned_state
        names = [(variable, entry_name(entry)) for variable, entry in pairs if entry.key in state]
        attribute_names = {id(value): name for name, value in vars(self.model).items()} if len(copies) > 1 else {}
        roots = {
            attribute_names.get(id(optimizer), f"optimizer_{k}" if k else "optimizer"): copies[step]
            for k, (step, optimizer) in enumerate(self.optimizers.items())
        }
        return Objects({"model": self.model, **roots}, names)

    def save(self, path: str, position: RunPosition, max_to_keep: int | None) -> None:
        """Save a checkpoint. All ranks call it together, or rank 0 alone while it leads."""
        self.ranks.save(path, {"position": asdict(position)}, max_to_keep)

    def load(self, path: str) -> RunPosition:
        """Load a checkpoint, called like :meth:`save`; return the position at which it was saved."""
        content = self.ranks.restore(path)
        return RunPosition(**content.get("position", {}))

    # Keras's formats

    def write(self, path: str, save: Callable[[keras.Model], Any]) -> None:
        """Have rank 0 write a file in Keras's format from the trained values; raise TensorOptError if that fails."""

        def action() -> None:
            with self.as_trained() as (model, _):
                try:
                    save(model)
                except OSError as error:
                    reason = error.strerror or error
                    raise TensorOptError(f"'{path}' can't be saved: {reason}; make room, or save elsewhere") from error

        self.ranks.lead(action)

    def read(self, path: str, load: Callable[[keras.Model], Any]) -> None:
        """Have rank 0 read a file in Keras's format for all ranks; raise InputError if it is missing or of another model."""

        def action() -> None:
            with self.as_trained() as (model, pairs):
                try:
                    load(model)
                except _UNREADABLE as error:
                    raise InputError(
                        f"'{path}' can't be loaded into model '{model.name}': {cut(error) or type(error).__name__}; it is "
                        "missing, damaged or of another model: give a file that was saved from a model of the same structure"
                    ) from error
                for variable, entry in pairs:
                    self.ranks.assign(entry.key, inner(variable).numpy())

        self.ranks.lead(action)

    @contextmanager
    def as_trained(self) -> Iterator[tuple[keras.Model, Pairs]]:
        """Have the user's model compiled with its optimizer as trained, its loss and metrics within this context.

        Only rank 0 while it leads, or the only process of a run, may enter it.

        Yields:
            The model, and pairs of a variable of its optimizer and the variable's entry on the ranks.
        """
        model, attributes = self.model, dict(vars(self.model))
        try:
            copies, pairs = self._plain_optimizers()
            self._fill(pairs)
            copies_by_id = {id(optimizer): copies[step] for step, optimizer in self.optimizers.items()}
            self.objective.compilation.with_copies(model, copies_by_id)
            yield model, pairs
        finally:
            vars(model).clear()
            vars(model).update(attributes)

    def _plain_optimizers(self, is_empty: bool = False) -> tuple[dict[str, keras.optimizers.Optimizer], Pairs]:
        def variables_of(step: str) -> list[keras.Variable]:
            if len(self.optimizers) == 1:
                return list(self.model.trainable_variables)
            return updated_by(step, self.ranks, self.model.variables)  # each updates variables of its own

        return plain_optimizers(self.optimizers, variables_of, self.key_of, self.ranks, is_empty)

    # Models

    def export_to(self, model: keras.Model) -> None:
        """Copy the trained values into a Keras model; raise InputError if its variables differ in number or shape."""
        _check_alike(self.model, model)
        if model is self.model:
            self.ranks.export()
            return
        self._fill(self._pairs(model))
        for source, variable in zip(self.model.variables, model.variables, strict=True):
            if self.key_of(inner(source)) is None:
                inner(variable).assign(self._own(source))

    def values_of(self, variables: list[keras.Variable]) -> list[np.ndarray]:
        """Return the trained global values of variables of the user's model.

        A variable that no program uses isn't on the ranks: its own value is returned, that of rank 0.
        """
        keys = [self.key_of(inner(variable)) for variable in variables]
        by_key = dict(self.ranks.values(key for key in keys if key is not None))
        return [self._own(variable) if key is None else by_key[key] for variable, key in zip(variables, keys, strict=True)]

    def _own(self, variable: keras.Variable) -> np.ndarray:
        value: np.ndarray = inner(variable).numpy()
        return value if self.ranks.leads else self.ranks.processes.broadcast(value, "values of what no step uses")

    def assign(self, variables: list[keras.Variable], values: Any) -> None:
        """Assign values to variables of the user's model on the ranks, once all values have passed the checks.

        Raises:
            InputError: the number of values or a shape is wrong, a value isn't numeric, or ranks give different values.
        """

        unplanned: list[tuple[keras.Variable, np.ndarray]] = []

        def checked() -> dict[str, np.ndarray]:
            by_key = {}
            for variable, array in zip(variables, _fitting(self.model.name, variables, values), strict=True):
                key = self.key_of(inner(variable))
                if key is None:  # a program that uses it some day begins with its own value
                    unplanned.append((variable, array))
                else:
                    by_key[key] = array
            return by_key

        self.ranks.assign_same(checked)
        for variable, array in unplanned:
            inner(variable).assign(array)

    def _pairs(self, model: keras.Model) -> Pairs:
        """Return pairs of a model's variable and the state entry of the same variable of the user's model."""
        keys = [self.key_of(inner(variable)) for variable in self.model.variables]
        state = self.ranks.state
        return [(variable, state[key]) for variable, key in zip(model.variables, keys, strict=True) if key is not None]

    def _fill(self, pairs: Pairs) -> None:
        variables = {entry.key: variable for variable, entry in pairs}
        for key, value in self.ranks.values(variables):
            inner(variables[key]).assign(value)


def _fitting(name: str, variables: list[keras.Variable], values: Any) -> list[np.ndarray]:
    """Return values as arrays of the variables' types; raise InputError if their number, a shape or a type is wrong."""
    advice, call = "give them as trainer.get_weights() does", f"set_weights ({running_line()})"
    if not isinstance(values, (list, tuple)):
        actual = short(values)
        raise InputError(f"{call} takes a list of {len(variables)} arrays for model '{name}', got {actual}; {advice}")
    if len(values) != len(variables):
        raise InputError(f"{call} got {len(values)} arrays, expected {len(variables)} for model '{name}'; {advice}")
    arrays = []
    for i, (variable, value) in enumerate(zip(variables, values, strict=True)):
        place = f"{call} got at place {i}, for '{variable.path}' of model '{name}',"
        try:
            array = np.asarray(value)
            dtype = tf.as_dtype(array.dtype)
        except (ValueError, TypeError) as error:
            raise InputError(f"{place} {short(value)}, expected an array of numbers; {advice}") from error
        if not (dtype.is_floating or dtype.is_integer or dtype.is_bool):
            raise InputError(f"{place} type {array.dtype}, expected {inner(variable).dtype.name}; {advice}")
        if array.shape != tuple(variable.shape):
            raise InputError(f"{place} shape {list(array.shape)}, expected {list(variable.shape)}; {advice}")
        arrays.append(array.astype(inner(variable).dtype.as_numpy_dtype))
    return arrays


def _check_alike(model: keras.Model, twin: Any) -> None:
    """Check that another model's variables are like the trained model's; raise InputError with the first difference."""
    if not isinstance(twin, keras.Model):
        raise InputError(f"export_to takes a keras.Model of the structure of '{model.name}', got {type(twin).__name__}")
    left, right = model.variables, twin.variables
    for variable, target in zip(left, right, strict=False):
        if variable.shape != target.shape:
            raise InputError(
                f"model '{twin.name}' has variable '{target.path}' of shape {list(target.shape)} where '{model.name}' has "
                f"'{variable.path}' of shape {list(variable.shape)}; give a model of the same structure"
            )
    if len(left) != len(right):
        raise InputError(
            f"model '{twin.name}' has {len(right)} variables, '{model.name}', which was trained, has {len(left)}; give a "
            "model of the same structure"
        )


def plain_optimizers(
    optimizers: Mapping[str, keras.optimizers.Optimizer],
    variables_of: Callable[[str], Sequence[keras.Variable]],
    key_of: Callable[[Any], str | None],
    ranks: TrainerRanks,
    is_empty: bool = False,
) -> tuple[dict[str, keras.optimizers.Optimizer], list[tuple[keras.Variable, StateEntry]]]:
    """Return copies of the optimizers, built as Keras builds them, and pairs of their variables and the ranks' entries.

    Args:
        optimizers: the user's optimizers, by the name of the training step that applies each first; so are the copies.
        variables_of: returns the variables that the optimizer of such a step may update.
        key_of: returns the key of one of the user's variables in the ranks' state; None for one that isn't trained there.
        is_empty: whether to build slots without elements: enough to know their names and paths, without their memory.
    """
    copies: dict[str, keras.optimizers.Optimizer] = {}
    pairs: list[tuple[keras.Variable, StateEntry]] = []
    for step, optimizer in optimizers.items():
        variables = list(variables_of(step))
        with own_values():
            copy = copies[step] = fresh_copy(optimizer)
            if is_empty:
                inner_of(copy).add_variable_from_reference = _empty_slot(inner_of(copy))
            slots = build_variables(copy, variables, KerasOptimizer.of(optimizer, variables).parameters)
        queues: dict[str | None, list[StateEntry]] = {}
        for entry in ranks.optimizers[step].state():
            queues.setdefault(entry.parameter, []).append(entry)
        for variable, index in slots:
            key = None if index is None else key_of(inner(variables[index]))
            if index is None or (key is not None and queues.get(key)):  # else the training step doesn't update it
                pairs.append((variable, queues[key].pop(0)))
    return copies, pairs


def _empty_slot(optimizer: keras.optimizers.Optimizer) -> Callable[..., keras.Variable]:
    def add(reference_variable: Any, name: str | None = None, initializer: Any = "zeros") -> keras.Variable:
        return optimizer.add_variable((0,) * len(reference_variable.shape), "zeros", reference_variable.dtype, name=name)

    return add


def updated_by(step: str, ranks: TrainerRanks, variables: Iterable[keras.Variable]) -> list[Any]:
    """Return what a training step updates: of these variables, and TensorFlow's own where it is none of these."""
    by_id = {id(inner(variable)): variable for variable in variables}
    captured = ranks.runs.planned.captured
    step_variables = (captured.capture.variables[name] for name in captured.graph.train_steps[step].variables)
    return [by_id.get(id(variable), variable) for variable in step_variables]
