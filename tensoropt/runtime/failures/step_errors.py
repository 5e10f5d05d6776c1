"""Explain errors while a step runs: values that an operator doesn't take, and steps in two threads at once."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

import tensorflow as tf

from ...common.errors import InputError, OutOfMemoryError
from ...common.source_lines import line_at, running_at, running_line
from ...ir.graph import Graph, Operator

MOST_REASON = 240
_ABOUT_WHERE = ("File ", "[[", "Detected at", "Graph execution")
_running = threading.Lock()
# The thread that runs a step, and where it is: the line of that is made only for a message.
_runner: tuple[threading.Thread, str, FrameType] | None = None


class OnlyStep:
    """A context that refuses a step while another thread runs one.

    All ranks must run the same steps in one order, which threads don't keep. Each step enters it with cold caches, where a
    generator would take several times as long.
    """

    def __enter__(self) -> None:
        """Begin a step; raise InputError if another thread runs one."""
        global _runner
        if not _running.acquire(blocking=False):
            thread = threading.current_thread().name
            raise InputError(
                f"a step was started ({running_line()}) in thread '{thread}' while {_running_one()} runs one: all ranks "
                "must run the same steps in one order, which threads don't keep; run steps in one thread"
            )
        # The frame of the ``with`` statement, which is on the stack as long as the step runs: this one's isn't.
        _runner = threading.current_thread(), *running_at(depth=2)

    def __exit__(self, *_: object) -> None:
        global _runner
        _runner = None
        _running.release()


only_step = OnlyStep()


def _running_one() -> str:
    """Return the thread that runs a step, with its line, as a text."""
    runner = _runner
    if runner is None:
        return "another thread"
    thread, function, frame = runner
    return f"thread '{thread.name}' ({line_at(function, frame)})"


class RefusedValues(AbstractContextManager[None]):
    """A context that reports which of the user's operators a value doesn't suit, if a kernel of TensorFlow's refuses it.

    It also explains that memory ran out, where it is told how.
    """

    def __init__(self, graph: Graph, out_of_memory: Callable[[str], str] | None = None) -> None:
        self._graph, self._out_of_memory = graph, out_of_memory

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Explain an error of a kernel.

        Raises:
            InputError: a kernel refused a value, such as a label that isn't a class.
            OutOfMemoryError: TensorFlow couldn't allocate a tensor.
        """
        if isinstance(error, tf.errors.ResourceExhaustedError) and self._out_of_memory is not None:
            raise OutOfMemoryError(self._out_of_memory(_allocation(error.message))) from error
        if not isinstance(error, tf.errors.InvalidArgumentError):
            return
        op = _operator(self._graph, error.message)
        subject = op.where() if op is not None else "an operator of the model"
        reason = _reason(error.message)
        about_indices = re.search(r"\b(label|indices|index|indexing)|is not in \[", reason, re.IGNORECASE)
        advice = ": labels and indices from 0 to one less than what there is of them" if about_indices else ""
        raise InputError(
            f"{subject} can't take a value of this batch ({running_line()}): {reason}. Give values that the model can "
            f"take{advice}"
        ) from error


@contextmanager
def checked_values(place: str) -> Iterator[None]:
    """Return a context that raises InputError if the user's assertion at this place fails."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        raise InputError(f"{place} doesn't hold in this step ({running_line()}): {_reason(error.message)}") from error


def _operator(graph: Graph, message: str) -> Operator | None:
    """Return the operator that failed, or None if the message names none of the graph.

    The node in the message may have a number appended to the operator's name.
    """
    match = re.search(r"node (\S+?)(?:}}|\s|$)", message)
    name = match.group(1) if match else ""
    while name and name not in graph.operators:
        stem = re.sub(r"_\d+$", "", name)
        name = stem if stem != name else name.rpartition("/")[0]
    return graph.operators.get(name)


def _allocation(message: str) -> str:
    """Return which allocation failed, without the place in TensorFlow's code and without the trace."""
    lines = (line.strip() for line in message.splitlines())
    failure = next((line for line in lines if "OOM" in line or "allocate" in line), _reason(message))
    return re.sub(r"\[Op:\w*\]|\{\{.*?\}\}", "", failure).strip()


def _reason(message: str) -> str:
    """Return TensorFlow's message without its trace: the last line that isn't about a place in the code."""
    lines = [line.strip() for line in message.splitlines()]
    reasons = [line for line in lines if line and not line.startswith(_ABOUT_WHERE)]
    text = re.sub(r"\s*\[Op:\w*\]$", "", reasons[-1] if reasons else "it is refused").rstrip(".")
    return text if len(text) <= MOST_REASON else f"{text[: MOST_REASON - 4]} ..."
