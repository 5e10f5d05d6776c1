"""Decide which value a read of a parallelized model's variable returns, and what an assignment to it changes.

A parallelized model has two values for each variable: the trained value, in shards on the ranks, and the model's own value,
as it was before training.

| access through | a read returns | an assignment |
|---|---|---|
| the trainer: ``trainer(x)``, ``trainer.weights``, ``trainer.layers[0]`` | the trained value, gathered | reaches the ranks |
| the user's model, while ``fit``, ``evaluate`` or ``predict`` runs | an error, once the two differ | is refused |
| the user's model at other times | its own value; rank 0 warns once they differ | changes its own value; rank 0 warns |
| the trainer's own work: captures, files, exports | its own value | changes its own value |

Each variable of the model is watched (:mod:`.watched`): it asks the model's trainers at each access. They choose the row of
the table by the scope in which the access happens. Of an assignment while the two are the same, rank 0 warns at the
trainer's next step, since it doesn't matter before.
Gathering a trained value takes the same call on every rank, unless rank 0 leads
(:meth:`.trainer_ranks.TrainerRanks.lead`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import MethodType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ..common.errors import InputError
from ..common.source_lines import running_line
from .trainer_ranks import TrainerRanks
from .watched import OWN, TRAINED, VariableWatch, WatchedVariable, Words, class_with, scope, watch_all


class LiveValues(VariableWatch):
    """The values of one trainer's model as they are on the ranks.

    Attributes:
        model: the user's model.
        other_watches: the watches over the user's optimizer and metrics.
    """

    def __init__(
        self, model: keras.Model, ranks: TrainerRanks, key_of: Callable[[Any], str | None], words: Words | None = None
    ) -> None:
        words = words or Words(
            f"model '{model.name}'",
            "there take self.model, as a callback has it, or the trainer in place of the model",
            "call trainer.export_to(model) on all ranks ahead of it, or ask the trainer: trainer.get_weights(), trainer(x), "
            "trainer.predict(x)",
            "trainer.set_weights(model.get_weights()) trains on with the model's values",
        )
        super().__init__(words, ranks.rank)
        self.model, self._ranks = model, ranks
        self.other_watches: tuple[VariableWatch, ...] = ()
        self._views: dict[int, Any] = {}
        keys = {id(variable): key_of(variable._value) for variable in model.variables}
        self._keys = {of: key for of, key in keys.items() if key is not None}
        watch_all([variable for variable in model.variables if id(variable) in self._keys], self)

    def trained(self) -> Any:
        """Return a context in which reads of the model's variables give trained values and assignments reach the ranks."""
        return scope(self, TRAINED)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Refuse, within this context, reads that would give untrained values: a loop runs and calls the user's code."""
        watches = (self, *self.other_watches)
        before = [watch.is_running for watch in watches]
        self._forget_traces()
        for watch in watches:
            watch.is_running = True
        try:
            yield
        finally:
            for watch, was_running in zip(watches, before, strict=True):
                watch.is_running = was_running
            self._forget_traces()

    def before_step(self) -> None:
        """Warn of what was assigned beside the trainer, and prepare for values that will differ."""
        super().before_step()
        for watch in self.other_watches:
            watch.before_step()
        if not self.any_differs:
            self._forget_traces()

    def settle(self) -> None:
        super().settle()
        self._forget_traces()

    def _forget_traces(self) -> None:
        """Have the model trace its functions again: one that is traced doesn't read the variables where it can be told."""
        self.model.train_function = self.model.test_function = self.model.predict_function = None

    # Answers to variables

    def differs(self, variable: Any) -> bool:
        """Return whether the trained value of a variable may be another than its own."""
        return self._keys[id(variable)] in self._ranks.changed

    @property
    def any_differs(self) -> bool:
        return not self._ranks.changed.isdisjoint(self._keys.values())

    def read(self, variable: Any) -> np.ndarray | None:
        """Return the trained value of a variable; None if the access is to the variable's own value."""
        if self.mode == TRAINED:
            _check_eager(variable)
            key = self._keys[id(variable)]
            return dict(self._ranks.values([key]))[key]
        return super().read(variable)

    def assign(self, variable: Any, value: Any) -> bool:
        """Assign a value on the ranks if the trained scope is open; return whether it was."""
        if self.mode != TRAINED:
            return super().assign(variable, value)
        _check_eager(variable)
        full = np.asarray(tf.cast(value, variable._value.dtype))
        self._ranks.assign_same(lambda: {self._keys[id(variable)]: full})
        return True

    # Access through the trainer

    def through(self, found: Any) -> Any:
        """Wrap an attribute of the model so that reads and assignments through it reach the values on the ranks.

        Variables and layers are wrapped, also inside of tuples, lists and dicts. Anything else is returned as it is.
        """
        if self.mode == OWN:
            return found
        if isinstance(found, keras.Variable):
            return self._view(found)
        if isinstance(found, MethodType) and found.__self__ is self.model:
            return _in_scope(self, found)
        if isinstance(found, keras.Layer) and not isinstance(found, LayerView):
            return LayerView(self, found)
        if isinstance(found, tuple) and not hasattr(found, "_fields"):
            return tuple(map(self.through, found))
        if isinstance(found, list):
            return list(map(self.through, found))
        if isinstance(found, dict):
            return {key: self.through(value) for key, value in found.items()}
        return found

    def _view(self, variable: Any) -> Any:
        if isinstance(variable, _View) or not isinstance(variable, WatchedVariable):
            return variable
        if id(variable) not in self._views:
            view: Any = object.__new__(class_with(_View, variable))
            attributes = {name: value for name, value in vars(variable).items() if name != "_value"}
            vars(view).update(attributes, _of=variable, _live=self)
            self._views[id(variable)] = view
        return self._views[id(variable)]


def _check_eager(variable: keras.Variable) -> None:
    if not tf.executing_eagerly():
        raise InputError(
            f"the trained value of '{variable.path}' can't be taken inside of a tf.function ({running_line()}), as "
            "predict of a layer has one: it would be a constant there; call the layer as it is, or call "
            "trainer.export_to(model), and take the model"
        )


# Variables


class _View:
    """A mixin for a variable reached through the trainer, which reads and assigns the value on the ranks."""

    _of: Any
    _live: LiveValues

    @property
    def value(self) -> Any:
        with self._live.trained():
            return self._of.value

    def _direct_assign(self, value: Any) -> None:
        with self._live.trained():
            self._of._direct_assign(value)

    @property
    def handle(self) -> Any:
        raise InputError(
            f"'{self._of.path}' is sharded over the ranks, and is no variable by which a gradient can be taken or that a "
            f"graph can hold ({running_line()}); call trainer.export_to(model), and take the model's variable"
        )

    @property
    def trainable(self) -> bool:
        return bool(self._of.trainable)

    @trainable.setter
    def trainable(self, value: bool) -> None:
        raise _captured(f"trainable of '{self._of.path}'")


def _captured(what: str) -> InputError:
    return InputError(
        f"{what} can't be set by way of the trainer ({running_line()}): what runs was captured by parallelize; call "
        "trainer.export_to(model), set it on the model, and parallelize the model again"
    )


# Layers


class LayerView:
    """A layer reached through the trainer: it has all attributes of the layer, with its variables' trained values."""

    def __init__(self, live: LiveValues, layer: keras.Layer) -> None:
        vars(self).update(_live=live, _layer=layer)

    @property
    def __class__(self) -> type:
        return type(vars(self)["_layer"])

    @__class__.setter
    def __class__(self, kind: type) -> None:
        raise _captured(f"the class of layer '{self.name}'")

    def __getattr__(self, name: str) -> Any:
        live, layer = vars(self)["_live"], vars(self)["_layer"]
        with live.trained():
            found = getattr(layer, name)
        if isinstance(found, MethodType) and found.__self__ is layer:
            return _in_scope(live, found)
        return live.through(found)

    def __setattr__(self, name: str, value: Any) -> None:
        raise _captured(f"{name} of layer '{self.name}'")

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        with vars(self)["_live"].trained():
            return vars(self)["_layer"](*arguments, **named)

    def __eq__(self, other: object) -> bool:
        return vars(self)["_layer"] is (vars(other)["_layer"] if type(other) is LayerView else other)

    def __hash__(self) -> int:
        return hash(vars(self)["_layer"])

    def __repr__(self) -> str:
        return repr(vars(self)["_layer"])

    def __dir__(self) -> list[str]:
        return dir(vars(self)["_layer"])


def _in_scope(live: LiveValues, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        with live.trained():
            return live.through(function(*arguments, **named))

    return called
