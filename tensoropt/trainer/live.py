"""Decide which value a read of a parallelized model's variable returns, and what an assignment to it changes.

A parallelized model has two values for each variable: the trained value, in shards on the ranks, and the model's own value,
as it was before training.

| access through | a read returns | an assignment |
|---|---|---|
| the trainer: ``trainer(x)``, ``trainer.weights``, ``trainer.layers[0]`` | the trained value, gathered | reaches the ranks |
| the user's model, while ``fit``, ``evaluate`` or ``predict`` runs | an error, once the two differ | is refused |
| the user's model at other times | its own value; rank 0 warns once | changes its own value; rank 0 warns once |
| the trainer's own work: captures, files, exports | its own value | changes its own value |

The class of each variable of the model is replaced by one that asks the model's trainers. They choose the row of the table
by the scope in which the access happens. Gathering a trained value takes the same call on every rank, unless rank 0 leads
(:meth:`.ranks.Ranks.lead`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from types import MethodType
from typing import Any
from weakref import ref

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common.stateless_scope import in_stateless_scope

from ..common.errors import InputError
from ..common.source_lines import running_line
from .ranks import Ranks

logger = logging.getLogger("tensoropt")
_TRAINED, _OWN = "trained", "own"
_scopes: ContextVar[tuple[tuple[LiveValues, str], ...]] = ContextVar("tensoropt_scopes", default=())
_ASSIGNED, _READ = "assigned to", "read"


class LiveValues:
    """The values of one trainer's model as they are on the ranks.

    Attributes:
        model: the user's model.
    """

    def __init__(self, model: keras.Model, ranks: Ranks, key_of: Callable[[Any], str | None]) -> None:
        self.model, self._ranks = model, ranks
        self._views: dict[int, Any] = {}
        self._keys: dict[int, str] = {}
        self._is_running = False
        self._said: set[str] = set()
        for variable in model.variables:
            key = key_of(variable._value)
            if key is not None:
                self._keys[id(variable)] = key
                _ask(variable, self)

    # Scopes

    def trained(self) -> Any:
        """Return a context in which reads of the model's variables give trained values and assignments reach the ranks."""
        return self._within(_TRAINED)

    def own(self) -> Any:
        """Return a context in which the model's variables have their own values."""
        return self._within(_OWN)

    @contextmanager
    def _within(self, mode: str) -> Iterator[None]:
        token = _scopes.set((*_scopes.get(), (self, mode)))
        try:
            yield
        finally:
            _scopes.reset(token)

    @property
    def mode(self) -> str | None:
        """The innermost open scope of this model, "trained" or "own"; None if there is none."""
        return next((mode for values, mode in reversed(_scopes.get()) if values is self), None)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Refuse, within this context, reads that would give untrained values: a loop runs and calls the user's code."""
        before, self._is_running = self._is_running, True
        # A function that was traced before doesn't read the variables again, so its reads couldn't be refused.
        self.model.train_function = self.model.test_function = self.model.predict_function = None
        try:
            yield
        finally:
            self._is_running = before

    # Answers to variables

    def read(self, variable: keras.Variable) -> np.ndarray | None:
        """Return the trained value of a variable; None if the access is to the variable's own value."""
        key, mode = self._keys[id(variable)], self.mode
        if mode == _TRAINED:
            _check_eager(variable)
            return dict(self._ranks.values([key]))[key]
        if mode is None and key in self._ranks.changed:
            self._say(_READ, variable)
        return None

    def assign(self, variable: keras.Variable, value: Any) -> bool:
        """Assign a value on the ranks if the trained scope is open; return whether it was."""
        mode = self.mode
        if mode == _TRAINED:
            _check_eager(variable)
            whole = np.asarray(tf.cast(value, variable._value.dtype))
            self._ranks.assign_same(lambda: {self._keys[id(variable)]: whole})
            return True
        if mode is None:
            self._say(_ASSIGNED, variable)
        return False

    def _say(self, what: str, variable: keras.Variable) -> None:
        name, line = self.model.name, running_line()
        if self._is_running:
            raise InputError(
                f"'{variable.path}' of model '{name}' is {what} at {line} while its trainer runs, and has its value from "
                "before the training: the trained one is on the ranks; there take self.model, as a callback has it, or the "
                "trainer in place of the model"
            )
        if self._ranks.rank == 0 and what not in self._said:
            self._said.add(what)
            logger.warning(_WARNINGS[what], variable.path, name, line)

    # Access through the trainer

    def through(self, found: Any) -> Any:
        """Wrap an attribute of the model so that reads and assignments through it reach the values on the ranks.

        Variables and layers are wrapped, also inside of tuples, lists and dicts. Anything else is returned as it is.
        """
        if self.mode == _OWN:
            return found
        if isinstance(found, keras.Variable):
            return self._view(found)
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
        if isinstance(variable, _View) or not isinstance(variable, _Asking):
            return variable
        if id(variable) not in self._views:
            view: Any = object.__new__(class_with(_View, variable))
            attributes = {name: value for name, value in vars(variable).items() if name != "_value"}
            vars(view).update(attributes, _of=variable, _live=self)
            self._views[id(variable)] = view
        return self._views[id(variable)]


_WARNINGS: Mapping[str, str] = {
    _READ: "'%s' of model '%s' is read at %s and has its own value, not the trained one, which is on the ranks: call "
    "trainer.export_to(model) on all ranks ahead of it, or ask the trainer: trainer.get_weights(), trainer(x), "
    "trainer.predict(x)",
    _ASSIGNED: "'%s' of model '%s' is assigned to at %s after the model was parallelized, of which its trainer knows "
    "nothing: trainer.set_weights(model.get_weights()) trains on with the model's values",
}


def _check_eager(variable: keras.Variable) -> None:
    if not tf.executing_eagerly():
        raise InputError(
            f"the trained value of '{variable.path}' can't be taken inside of a tf.function ({running_line()}): it would be "
            "a constant there; call trainer.export_to(model), and trace the model"
        )


# Variables


@cache
def _class_with(mixin: Any, kind: Any) -> Any:
    return type(kind.__name__, (mixin, kind), {"__module__": kind.__module__})


def class_with(mixin: type, variable: object) -> Any:
    """Return a subclass of the variable's class with a mixin before it; the same one for all variables of that class."""
    kind: Any = type(variable)
    return _class_with(mixin, kind)


class _Asking:
    """A mixin for the class of a parallelized model's variable, which asks the trainers at each read and assignment."""

    _trainers: tuple[ref[LiveValues], ...]

    def _asked(self) -> list[LiveValues]:
        """Return the trainers' values to ask: those whose scope is open, or all if none is."""
        alive = [values for values in (each() for each in self._trainers) if values is not None]
        return [values for values in alive if values.mode is not None] or alive

    @property
    def value(self) -> Any:
        if not in_stateless_scope():
            for values in self._asked():
                whole = values.read(self)
                if whole is not None:
                    return self._maybe_autocast(tf.convert_to_tensor(whole))  # type: ignore[attr-defined]
        return super().value  # type: ignore[misc]

    def _direct_assign(self, value: Any) -> None:
        passed_on = False
        for values in self._asked():
            passed_on |= values.assign(self, value)
        if not passed_on:
            super()._direct_assign(value)  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"<Variable path={self.path}, shape={tuple(self.shape)}, dtype={self.dtype}>"  # type: ignore[attr-defined]


def _ask(variable: Any, values: LiveValues) -> None:
    """Make a variable ask a trainer's values at each read and assignment."""
    if not isinstance(variable, _Asking):
        variable.__class__ = class_with(_Asking, variable)
        variable._trainers = ()
    alive = [each for each in variable._trainers if each() is not None]
    variable._trainers = (*alive, ref(values))


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
            f"'{self._of.path}' is in pieces on the ranks, and is no variable by which a gradient can be taken or that a "
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
