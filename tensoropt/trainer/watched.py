"""Watch the variables of the user's objects, whose running values are on the ranks.

The class of a watched variable is replaced by one that tells its watches of each read and assignment. A watch belongs to one
trainer, and knows where the running values are: those of the model (:mod:`.live`), of its optimizer and of its metrics
(:mod:`.watched_objects`). Captures, files and exports open :func:`own_values`, in which nothing is said.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import ref

import numpy as np
import tensorflow as tf
from keras.src.backend.common.stateless_scope import in_stateless_scope

from ..common.errors import InputError
from ..common.source_lines import running_line

logger = logging.getLogger("tensoropt")
TRAINED, OWN = "trained", "own"
ASSIGNED, READ = "assigned to", "read"
# Each open scope: the watch that it is of (None: of all watches), and which values variables have in it.
_scopes: ContextVar[tuple[tuple[VariableWatch | None, str], ...]] = ContextVar("tensoropt_scopes", default=())


@contextmanager
def scope(watch: VariableWatch | None, mode: str) -> Iterator[None]:
    """Choose, within this context, which values a watch's variables have, or all watches' for None."""
    token = _scopes.set((*_scopes.get(), (watch, mode)))
    try:
        yield
    finally:
        _scopes.reset(token)


def own_values() -> Any:
    """Return a context in which variables have their own values, whichever trainers watch them."""
    return scope(None, OWN)


@dataclass(frozen=True, slots=True)
class Words:
    """The words with which a watch reports a read of its variables or an assignment to them.

    Attributes:
        owner: what has the variable, such as ``model 'resnet'``.
        running: what to take instead while the trainer runs.
        read: what to do where an own value is read at another time.
        assigned: what to do where an own value is assigned at another time.
    """

    owner: str
    running: str
    read: str
    assigned: str


class VariableWatch(ABC):
    """A trainer's watch over variables of one of the user's objects.

    Attributes:
        words: what it says.
        is_running: whether a loop of the trainer runs, which calls the user's code.
    """

    def __init__(self, words: Words, rank: int) -> None:
        self.words, self._rank = words, rank
        self.is_running = False
        self._said: set[str] = set()
        self._assigned: str | None = None

    @abstractmethod
    def differs(self, variable: Any) -> bool:
        """Return whether a variable's own value may be another than the running one."""

    @property
    @abstractmethod
    def any_differs(self) -> bool:
        """Return whether some variable's own value may be another than the running one."""

    @property
    def mode(self) -> str | None:
        """The innermost open scope of this watch, TRAINED or OWN; None if there is none."""
        return next((mode for watch, mode in reversed(_scopes.get()) if watch is self or watch is None), None)

    def read(self, variable: Any) -> np.ndarray | None:
        """Return the running value of a variable; None if the access is to the variable's own value."""
        if self.mode is None and self.differs(variable):
            if self.is_running:
                raise self._refusal(READ, variable)
            self._warn(READ, self._sentence(READ, variable))
        return None

    def assign(self, variable: Any, value: Any) -> bool:
        """Assign a value on the ranks if the scope says so; return whether it was."""
        if self.mode is not None:
            return False
        if self.is_running:
            raise self._refusal(ASSIGNED, variable)
        # Only where the trainer runs on does an assignment to equal values matter. A traced one may never run.
        if self.any_differs and tf.executing_eagerly():
            self._warn(ASSIGNED, self._sentence(ASSIGNED, variable))
        elif self._assigned is None:
            self._assigned = self._sentence(ASSIGNED, variable)
        return False

    def before_step(self) -> None:
        """Warn, before the trainer makes a step, of an assignment of which it knows nothing."""
        if self._assigned is not None:
            self._warn(ASSIGNED, self._assigned)
            self._assigned = None

    def settle(self) -> None:
        """Note that the own and the running values were made the same, or that the user replaced the running ones."""
        self._assigned = None

    def _sentence(self, what: str, variable: Any) -> str:
        start = f"'{variable.path}' of {self.words.owner} is {what} at {running_line()}"
        if what == READ:
            return f"{start} and has its own value, not the one on the ranks, where the training goes on: {self.words.read}"
        return f"{start} after parallelize, of which the trainer knows nothing: {self.words.assigned}"

    def _refusal(self, what: str, variable: Any) -> InputError:
        return InputError(
            f"'{variable.path}' of {self.words.owner} is {what} at {running_line()} while its trainer runs, and has its "
            f"value from before the training: the running one is on the ranks; {self.words.running}"
        )

    def _warn(self, what: str, sentence: str) -> None:
        if self._rank == 0 and what not in self._said:
            self._said.add(what)
            logger.warning("%s", sentence)


# Variables


@cache
def _class_with(mixin: Any, kind: Any) -> Any:
    return type(kind.__name__, (mixin, kind), {"__module__": kind.__module__})


def class_with(mixin: type, variable: object) -> Any:
    """Return a subclass of the variable's class with a mixin before it; the same one for all variables of that class."""
    kind: Any = type(variable)
    return _class_with(mixin, kind)


class WatchedVariable:
    """A mixin for the class of a watched variable, which asks the watches at each read and assignment."""

    _watches: tuple[ref[VariableWatch], ...]

    def _watches_of(self) -> list[VariableWatch]:
        """Return the watches to ask: those whose scope is open, or all if none is."""
        alive = [watch for watch in (each() for each in self._watches) if watch is not None]
        return [watch for watch in alive if watch.mode is not None] or alive

    @property
    def value(self) -> Any:
        if not in_stateless_scope():
            for watch in self._watches_of():
                full = watch.read(self)
                if full is not None:
                    return self._maybe_autocast(tf.convert_to_tensor(full))  # type: ignore[attr-defined]
        return super().value  # type: ignore[misc]

    def _direct_assign(self, value: Any) -> None:
        passed_on = False
        for watch in self._watches_of():
            passed_on |= watch.assign(self, value)
        if not passed_on:
            super()._direct_assign(value)  # type: ignore[misc]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Describe a copy, which nothing watches: a variable of the class from before, with the value that a read gives."""
        classes = type(self).__mro__
        kind = classes[classes.index(WatchedVariable) + 1]
        state = {name: value for name, value in vars(self).items() if name not in ("_watches", "_of", "_live")}
        state["_value"] = tf.Variable(self.value, trainable=self.trainable, dtype=self.dtype)  # type: ignore[attr-defined]
        return _empty, (kind,), state

    def __repr__(self) -> str:
        return f"<Variable path={self.path}, shape={tuple(self.shape)}, dtype={self.dtype}>"  # type: ignore[attr-defined]


def _empty(kind: Any) -> Any:
    """Return a variable of a class, whose attributes are still to be set, as ``copy`` and ``pickle`` do."""
    return object.__new__(kind)


def watch_all(variables: Iterable[Any], watch: VariableWatch) -> None:
    """Make variables ask a watch at each read and assignment."""
    for variable in variables:
        if not isinstance(variable, WatchedVariable):
            variable.__class__ = class_with(WatchedVariable, variable)
            variable._watches = ()
        alive = [each for each in variable._watches if each() is not None]
        variable._watches = (*alive, ref(watch))


def tell_of_reads(variables: Iterable[Any]) -> None:
    """Warn where own values are about to be taken, as by ``parallelize``, that aren't the trained ones."""
    for variable in variables:
        if isinstance(variable, WatchedVariable):
            for watch in variable._watches_of():
                watch.read(variable)
