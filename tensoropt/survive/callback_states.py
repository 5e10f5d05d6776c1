"""Keep what callbacks remember: their attributes that are numbers, text or arrays, or what their ``get_state`` returns.

Keep also the states of Python's and NumPy's own random numbers, from which data may be drawn.
"""

from __future__ import annotations

import functools
import random
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ..common.errors import InputError
from .plain_values import NotPlainError, encoded

_OF_ALL = frozenset({"params", "_model", "validation_data"})
_OF_TENSORBOARD = ("_global_train_batch", "_global_test_batch", "_train_accumulated_time")
_CONSTANT: tuple[type, ...] = (
    *(type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, functools.partial, np.ufunc),
    *(Path, tf.data.Dataset, keras.optimizers.schedules.LearningRateSchedule),
)
"""The types of values that a callback refers to and doesn't change."""
OF_LISTS = (keras.callbacks.History, keras.callbacks.ProgbarLogger)


class CallbackStates:
    """The states of a ``fit``'s callbacks.

    Args:
        callbacks: the user's, in their order.
        stateless: those of them of which nothing needs to be kept.
        model: the model that is trained, which callbacks may refer to.

    Raises:
        InputError: a callback has state that can't be kept.
    """

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback], stateless: Sequence[Any], model: Any) -> None:
        stateful = [callback for callback in callbacks if all(callback is not other for other in stateless)]
        self._kept = [callback for callback in stateful if not isinstance(callback, OF_LISTS)]
        self._model = model
        self.get()

    def get(self) -> list[Any]:
        """Return the states, in the order of the callbacks; raise InputError if one can't be kept."""
        return [_state(callback, self._model) for callback in self._kept]

    def set(self, states: Sequence[Any]) -> None:
        """Give the callbacks their states, after ``on_train_begin`` and ``on_epoch_begin``.

        Raises:
            InputError: there are other callbacks than those that were saved.
        """
        if len(states) != len(self._kept) or any(
            name != type(callback).__name__ for (name, _), callback in zip(states, self._kept, strict=True)
        ):
            raise InputError(
                f"the checkpoint has the states of callbacks {', '.join(name for name, _ in states) or 'none'}, and fit got "
                f"{', '.join(type(c).__name__ for c in self._kept) or 'none'}; give the same ones, in that order"
            )
        for callback, (_, state) in zip(self._kept, states, strict=True):
            _set(callback, state)


def _state(callback: keras.callbacks.Callback, model: Any) -> tuple[str, Any]:
    name = type(callback).__name__
    if hasattr(callback, "get_state") and hasattr(callback, "set_state"):
        state = callback.get_state()
    elif isinstance(callback, keras.callbacks.BackupAndRestore):
        raise InputError("tensoropt.Survive does what BackupAndRestore does; leave BackupAndRestore out of the callbacks")
    elif isinstance(callback, keras.callbacks.CSVLogger):
        file = Path(callback.filename)
        return name, {"keys": callback.keys, "text": file.read_text() if file.is_file() else ""}
    elif isinstance(callback, keras.callbacks.TensorBoard):
        state = {attribute: getattr(callback, attribute) for attribute in _OF_TENSORBOARD}
    else:
        state = {
            key: value
            for key, value in vars(callback).items()
            if key not in _OF_ALL and value is not model and not isinstance(value, _CONSTANT)
        }
    for at, value in state.items() if isinstance(state, dict) else [("", state)]:
        try:
            encoded({at: value}, [])
        except NotPlainError as error:
            subject = f"its {at}" if at else "what get_state returns"
            raise InputError(
                f"tensoropt.Survive can't keep the state of callback {name}: {subject} has a value of type {error}; give "
                "the callback get_state(), which returns numbers, text and arrays, and set_state(state), or say "
                "Survive(..., stateless=[callback]) if nothing of it needs to be kept"
            ) from error
    return name, state


def _set(callback: keras.callbacks.Callback, state: Any) -> None:
    if hasattr(callback, "set_state") and hasattr(callback, "get_state"):
        callback.set_state(state)
    elif isinstance(callback, keras.callbacks.CSVLogger):
        if callback.csv_file is None or callback.csv_file.closed:
            return
        # on_train_begin has opened the file, and has emptied it unless append=True
        with open(callback.filename, "w") as file:
            file.write(state["text"])
        callback.csv_file.seek(0, 2)
        callback.keys, callback.writer, callback.append_header = state["keys"], None, not state["text"]
    else:
        vars(callback).update(
            {key: value.copy() if isinstance(value, np.ndarray) else value for key, value in state.items()}
        )


def random_states() -> Any:
    """Return the states of Python's and NumPy's random numbers."""
    return random.getstate(), np.random.get_state()


def set_random_states(states: Any) -> None:
    """Set the states that :func:`random_states` returned."""
    random.setstate(states[0])
    np.random.set_state(states[1])


def are_equal(one: Any, other: Any) -> bool:
    return bool(one[0] == other[0]) and all(map(np.array_equal, one[1], other[1]))
