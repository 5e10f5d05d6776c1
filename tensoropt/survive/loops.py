"""What a loop of the user's own trains, as a trainer's ranks hold it."""

from __future__ import annotations

from typing import Any

from ..common.errors import InputError, short
from ..common.source_lines import running_line
from ..runtime.checkpoint import restore
from ..session.session import Session
from ..trainer.planned import Planned
from .plain_values import NotPlainError, encoded


class SessionRanks:
    """The state of a recorded model on this rank. It belongs to no Keras object, and only the plan's steps assign to it."""

    objects = catch_up = staticmethod(lambda: None)

    def __init__(self, session: Session) -> None:
        if session.execution is None:
            raise InputError(f"steps ({running_line()}) comes after build_execution_graph, whose plan it saves")
        self.execution, self.processes = session.execution, session.execution.processes
        self.rank, self.kept = self.processes.rank, session.execution.engine.state()

    def restore(self, path: str) -> None:
        """Assign a checkpoint's values to all variables."""
        restore(path, self.kept, self.processes)


def ranks_of(step: Any, state: dict[str, Any]) -> Any:
    """Return the ranks of what a loop trains.

    Raises:
        InputError: it trains nothing, or has no plan yet, or its state can't be kept.
    """
    try:
        encoded(state, [])
    except NotPlainError as error:
        raise InputError(
            f"steps ({running_line()}) keeps numbers, text and arrays in state=, and lists and dictionaries of them; got a "
            f"value of type {error}"
        ) from error
    if isinstance(step, Session):
        return SessionRanks(step)
    if not isinstance(step, Planned):
        raise InputError(
            f"steps ({running_line()}) takes what its loop trains: a trainer, a training step that was given data=, or the "
            f"session that build_execution_graph returns; fit takes Survive among its callbacks; got {short(step)}"
        )
    assert step.plan  # which refuses what isn't planned yet
    return step._ranks
