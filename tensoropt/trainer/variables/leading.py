"""Have rank 0 run the user's code for all ranks, and the other ranks join in what needs them.

Normally every rank makes the same calls. Inside of :meth:`LedRanks.lead` only rank 0 runs the user's code, such as
a callback that saves, predicts or changes the learning rate. Rank 0 announces each operation that needs all ranks to the
others, which wait in :meth:`LedRanks.lead` and join in.
"""

from __future__ import annotations

import itertools
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from ...common.errors import TensorOptError
from ...runtime.ranks import Processes
from .live import settle

Value = TypeVar("Value")
Method = TypeVar("Method", bound=Callable[..., Any])
_DO, _DONE, _FAILED, _LEFT = "do", "done", "failed", "left"
_CALLBACKS = "what rank 0 does in its callbacks"


class LedRanks:
    """Operations that all ranks run together, of which rank 0 may call some for all.

    Attributes:
        number: the object's number, the same on all ranks.
    """

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self.number = next(_numbers)
        _known[self.number] = self

    @property
    def leads(self) -> bool:
        """Say whether this is rank 0 while it leads, with the other ranks waiting."""
        return bool(_leading)

    @property
    def follows(self) -> bool:
        """Say whether this rank waits for what rank 0 calls."""
        return bool(_following)

    def settle_for_all(self) -> None:
        """While rank 0 leads, send all ranks what the user's code has changed."""
        raise NotImplementedError

    def lead(self, action: Callable[[], Value]) -> Value:
        """Have rank 0 run an action. Return its result (picklable) or raise its exception, on every rank.

        A KeyboardInterrupt is raised on every rank too, so that a script may catch it and save, and so is an exit.
        """
        if self.leads or self.processes.size == 1:
            return action()
        if not self.follows:
            settle(None)
        if self.processes.rank:
            return self._follow()
        _leading.append(self)
        try:
            result = action()
            self.settle_for_all()
        except (Exception, KeyboardInterrupt) as error:
            self.processes.broadcast((_FAILED, _portable(error), ()), _CALLBACKS)
            raise
        except SystemExit as error:
            code = error.code if error.code is None or isinstance(error.code, int) else 1  # of a text, which rank 0 prints
            self.processes.broadcast((_LEFT, code, ()), _CALLBACKS)
            sys.exit(error.code)  # is noted again, since after an exit that is caught there are other collectives
        finally:
            _leading.pop()
        self.processes.broadcast((_DONE, result, ()), _CALLBACKS)
        return result

    def _follow(self) -> Any:
        _following.append(self)
        try:
            while True:
                message: tuple[str, Any, tuple[Any, ...]] = self.processes.broadcast(("", None, ()), _CALLBACKS)
                kind, content, arguments = message
                if kind == _DONE:
                    return content
                if kind == _FAILED:
                    raise content
                if kind == _LEFT:
                    sys.exit(content)
                number, method = content
                # rank 0 has the same error, and the user's code there decides whether it ends the run
                with suppress(TensorOptError):
                    getattr(_known[number], method)(*arguments)
        finally:
            _following.pop()


_known: WeakValueDictionary[int, LedRanks] = WeakValueDictionary()
_numbers = itertools.count()
_leading: list[LedRanks] = []
_following: list[LedRanks] = []


def everywhere(method: Method) -> Method:
    """Mark a method that all ranks must run together: when rank 0 calls it while it leads, the other ranks run it too."""

    @wraps(method)
    def called(self: LedRanks, *arguments: Any) -> Any:
        if _leading:
            _leading[-1].processes.broadcast((_DO, (self.number, method.__name__), arguments), _CALLBACKS)
        return method(self, *arguments)

    return called  # type: ignore[return-value]


def _portable(error: BaseException) -> BaseException:
    """Return the exception for other ranks to raise: itself if it can be pickled, so that one rank reports it for all."""
    with suppress(Exception):  # pickling a user's exception may raise anything
        if str(pickle.loads(pickle.dumps(error))) == str(error):
            return error
    return TensorOptError(f"rank 0 failed: {type(error).__name__}: {error}")
