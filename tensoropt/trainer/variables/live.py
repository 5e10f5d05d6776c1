"""Make the user's variables and the shards on the ranks one: what is read is the trained value, what is assigned trains on.

A variable of the user's has copies: its own buffer, and the shards of each trainer whose programs use it. One copy is the
newest; the others follow when they are needed.

| event | what happens |
|---|---|
| a trainer's step changes the variable | the trainer's shards are the newest copy; other trainers' are outdated |
| the user's code accesses the variable | its buffer is brought up to date, which gathers shards; a snapshot is kept |
| a trainer is about to run | a buffer that isn't its snapshot's any more is the newest copy; shards are renewed |

All ranks do the same, except while rank 0 leads (:meth:`.leading.LedRanks.lead`): there rank 0 alone reads, and
what it assigns is sent to all. Reading a variable of which each rank has all takes no other rank.

A variable is accessed by its handle, whoever does it: Keras, TensorFlow's Python or C++, raw operators, checkpoints. So the
class of a live variable has a property in the place of this attribute. A ``tf.function`` holds handles from when it was
traced; what it captured counts as accessed at each call. A snapshot shares the buffer's memory, so that whatever writes to
the variable must make another buffer. In a step nothing is done for variables that nobody accesses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
import tensorflow as tf
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction

from ...common.errors import InputError
from ...common.source_lines import is_in_dataset, running_line
from ...optimizers.copies import named_variables


class Holder(Protocol):
    """A trainer that has shards; see :class:`..trainer_ranks.TrainerRanks`."""

    changed: set[str]
    outdated: dict[str, bool]

    @property
    def leads(self) -> bool: ...

    @property
    def trained(self) -> frozenset[str]: ...

    @property
    def state(self) -> Mapping[str, Any]: ...

    @property
    def optimizers(self) -> Mapping[str, Any]: ...

    def value(self, key: str) -> np.ndarray: ...

    def assign(self, key: str, value: np.ndarray) -> None: ...

    def hold(self, key: str, live: Live) -> None: ...

    def changing(self, keys: Set[str]) -> None: ...


_is_ours: ContextVar[bool] = ContextVar("tensoropt_is_ours", default=False)


@contextmanager
def own_values() -> Iterator[None]:
    """Within this context variables are accessed as they are, without another rank."""
    token = _is_ours.set(True)
    try:
        yield
    finally:
        _is_ours.reset(token)


class Live:
    """One variable, with the copies of its value.

    Attributes:
        variable: the user's variable; None for a slot of an optimizer that the user's optimizer doesn't hold.
        newest: the trainer whose shards are the newest copy; None if that is the variable's own buffer.
        holders: the trainers that have shards, each with the variable's key there.
        count: how many variables have been live.
    """

    count = 0

    def __init__(self, variable: tf.Variable | None) -> None:
        Live.count += 1
        self.variable = variable
        self.newest: Holder | None = None
        self.holders: WeakKeyDictionary[Holder, str] = WeakKeyDictionary()

    @classmethod
    def of(cls, variable: tf.Variable) -> Live:
        """Return what is known of one of the user's variables, which is live from now on."""
        if not isinstance(variable, _LiveVariable):
            _hook_calls()
            vars(variable)["_live"] = cls(variable)
            kind: Any = type(variable)
            variable.__class__ = _class_of(kind)
            _by_handle[id(vars(variable)["_handle"])] = vars(variable)["_live"]
        live: Live = vars(variable)["_live"]
        return live

    def own(self) -> tf.Tensor:
        """Return the value in the variable's own buffer, whose memory the tensor shares."""
        assert self.variable is not None
        return tf.raw_ops.ReadVariableOp(resource=vars(self.variable)["_handle"], dtype=self.variable.dtype)

    def value(self) -> np.ndarray | None:
        """Return the newest value; None if there is none any more. All ranks do so together."""
        if self.newest is not None:
            return self.newest.value(self.holders[self.newest])
        return None if self.variable is None else self.own().numpy()

    def access(self) -> None:
        """Bring the variable's own buffer up to date, since the user's code is about to use it."""
        if self in _accessed:
            return
        if self.newest is not None:
            ranks, key = self.newest, self.holders[self.newest]
            value = tf.convert_to_tensor(ranks.value(key), self.variable.dtype)  # type: ignore[union-attr]
            tf.raw_ops.AssignVariableOp(resource=vars(self.variable)["_handle"], value=value)
            if not ranks.leads:  # else the other ranks' buffers are as they were
                self.newest = None
                ranks.changed.discard(key)
        _accessed[self] = self.own()

    def note_copy(self) -> None:
        """Note that another trainer has copied the newest value, which its next change outdates."""
        if self.newest is not None:
            self.newest.changed.discard(self.holders[self.newest])

    @property
    def changes(self) -> bool:
        """Say whether a trainer's steps change the variable."""
        return any(key in ranks.trained for ranks, key in self.holders.items())

    def forget_access(self) -> None:
        """Forget what the user's code did with the own buffer, since the value is replaced."""
        _accessed.pop(self, None)

    def changes_in(self, ranks: Holder) -> None:
        """Note that a trainer's shards become the newest copy."""
        self.newest = ranks
        for holder, key in self.holders.items():
            if holder is not ranks:
                holder.changed.discard(key)
                holder.outdated[key] = False


_accessed: WeakKeyDictionary[Live, tf.Tensor] = WeakKeyDictionary()
_by_handle: WeakValueDictionary[int, Live] = WeakValueDictionary()


def settle(leader: object | None) -> None:
    """Find which variables the user's code has assigned to since it accessed them; their shards are outdated.

    Args:
        leader: what rank 0 leads by, a trainer for one, so that what is assigned is sent to all ranks at once; None if it
            doesn't lead.
    """
    if not _accessed:
        return
    assigned = [live for live, old in _accessed.items() if not _is_same(live.own(), old)]
    _accessed.clear()
    for live in assigned:
        if leader is not None and live.holders:
            ranks = min(live.holders, key=lambda holder: holder is not leader)
            ranks.assign(live.holders[ranks], live.own().numpy())
            continue
        live.newest = None
        for ranks, key in live.holders.items():
            ranks.changed.discard(key)
            ranks.outdated[key] = True


def _is_same(value: tf.Tensor, other: tf.Tensor) -> bool:
    left, two = value._numpy(), other._numpy()  # without a copy
    if not isinstance(left, np.ndarray) or left.dtype == object:
        return np.array_equal(left, two, equal_nan=left.dtype != object)
    return left.ctypes.data == two.ctypes.data or left.tobytes() == two.tobytes()


# Access


class _LiveVariable:
    name: str

    def access_to_a_variable(self) -> tf.Tensor:  # this name is in messages of ranks that wait
        if not _is_ours.get():
            if tf.executing_eagerly():
                vars(self)["_live"].access()
            elif vars(self)["_live"].changes and is_in_dataset():
                raise InputError(
                    f"a dataset reads '{self.name}' ({running_line()}), which a trainer changes on the ranks: its "
                    "functions run outside of Python, and would read old values; do it in the training step, or give the "
                    "dataset a copy of the model"
                )
        return vars(self)["_handle"]

    _handle = property(access_to_a_variable, lambda self, value: vars(self).update(_handle=value))


@cache
def _class_of(kind: Any) -> Any:
    return type(kind)(kind.__name__, (_LiveVariable, kind), {"__module__": kind.__module__})


@cache
def _hook_calls() -> None:
    """Have each call of a ``tf.function`` count as an access to the live variables that it captured."""
    call = ConcreteFunction._call_flat

    @wraps(call)
    def _call_flat(self: Any, tensor_inputs: Any, captured_inputs: Any) -> Any:
        if tf.executing_eagerly() and not _is_ours.get():
            for live in _captured_by(self, captured_inputs):
                live.access()
        return call(self, tensor_inputs, captured_inputs)

    ConcreteFunction._call_flat = _call_flat


def _captured_by(function: Any, captured_inputs: Any) -> tuple[Live, ...]:
    entry = vars(function).get("_tensoropt_live")
    if entry is None or entry[0] != Live.count:
        lives = (_by_handle.get(id(handle)) for handle in captured_inputs)
        entry = Live.count, tuple(live for live in lives if live is not None)
        vars(function)["_tensoropt_live"] = entry
    return entry[1]


# Optimizers

_states: WeakKeyDictionary[Any, dict[frozenset[Live], dict[tuple[Live | str, int], Live]]] = WeakKeyDictionary()
"""By optimizer and by what it first updated, its variables: by their parameter or name, and their number of it."""


def held_state(optimizer: Any) -> list[Any]:
    """Return the state entries of an optimizer's variables that are on trainers' ranks."""
    lives = (live for slots in _states.get(optimizer, {}).values() for live in slots.values())
    return [next(ranks.state[key] for ranks, key in live.holders.items()) for live in lives if live.holders]


def hold_optimizer(ranks: Holder, step: str, optimizer: Any, parameters: Mapping[str, tf.Variable]) -> None:
    """Have a trainer's ranks hold an optimizer's state, which other trainers share that update these parameters by it.

    The first trainer begins with the values that the optimizer has; one that updates fewer parameters goes on with theirs.

    Args:
        parameters: what the step updates, by key.
    """
    states, variables_by_name, numbers = _states.setdefault(optimizer, {}), named_variables(optimizer), Counter[Live | str]()
    live_parameters = {key: Live.of(variable) for key, variable in parameters.items()}
    parameter_set = frozenset(live_parameters.values())
    shared_set = next((superset for superset in states if parameter_set <= superset), parameter_set)
    is_another = bool(states) and shared_set not in states  # of other parameters: it begins again
    slots = states.setdefault(shared_set, {})
    for entry in ranks.optimizers[step].state():
        name = entry.key.removeprefix(f"{step}/")
        owner = name if entry.parameter is None else live_parameters[entry.parameter]
        slot = owner, numbers[owner]
        numbers[owner] += 1
        is_shared = slot in slots
        if not is_shared:
            slots[slot] = Live.of(variables_by_name[name]._value) if name in variables_by_name else Live(None)
            if is_another:
                slots[slot].holders.clear()
        ranks.hold(entry.key, slots[slot])
        if is_another and not is_shared:
            ranks.changing({entry.key})
        elif is_shared or name in variables_by_name:
            ranks.outdated[entry.key] = False
