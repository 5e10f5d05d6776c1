"""The callback that keeps a ``fit`` in checkpoints, and goes on from the newest one that is whole.

A checkpoint is made between two steps, once the next step's batch is there: so the digest of that batch is in it, and a step
follows where it goes on. Whether to save is rank 0's choice, and whether to leave is that of any rank that got a signal; all
ranks agree on it before each step. What a checkpoint has, beside the variables:

| state | set again |
|---|---|
| the position in epochs and data | before the data is opened, of which what was taken is skipped |
| Python's and NumPy's random numbers at the beginning, and at the opening of the data | at the same places |
| the same numbers as they were when it was saved | before the first step, unless the data has drawn in between |
| variables, metrics of the epoch so far, callbacks' attributes, history | in ``on_epoch_begin``, after all other callbacks |
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import keras

from ..common.errors import InputError, TensorOptError, short
from ..common.files import path_text
from ..runtime.checkpoint.room import Room
from ..runtime.checkpoint.saving import Beside, PendingSave, room_for
from ..runtime.failures import notes
from ..runtime.failures.interruptions import say
from ..runtime.together import on_rank_0
from ..trainer.batch import Batch
from ..trainer.capture.programs import inner
from ..trainer.data.keeping import RunKeeper
from ..trainer.saving import RunPosition
from ..trainer.trainer_ranks import TrainerRanks
from ..trainer.variables.live import own_values
from .agreement import LEAVE, NOTHING, SAVE, StopRequest, agreed, digest_of
from .callback_states import CallbackStates, are_equal, random_states, set_random_states
from .interval import Interval
from .loops import ranks_of
from .plain_values import as_entries
from .run_folder import FitFolder, SavedRun, made_by

LEAVING_CODE = 75
"""The exit code of ranks that were asked to stop and have saved: start me again."""
MOST_FAILED = 3
_fits: dict[str, int] = {}
"""How many ``fit`` this process has kept in each folder."""


class Survive(RunKeeper):
    """A callback of ``fit`` that saves the run every so often, and goes on from the newest checkpoint that is whole.

    Weights, the optimizer, history, callbacks' states and the data's position are then those of a run that was never cut
    short. On SIGTERM or SIGUSR1 the run finishes its step, saves, and leaves with exit code 75.

    >>> import keras, numpy as np, os, tempfile, tensoropt
    >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    >>> trainer = tensoropt.parallelize(model, "sgd", "mse", batch_size=4, cluster="v100-1x1", verbose=0)
    >>> survive = tensoropt.Survive(tempfile.mkdtemp(), every="10min")
    >>> history = trainer.fit(np.ones((8, 8)), np.ones((8, 1)), batch_size=4, verbose=0, callbacks=[survive])
    >>> os.listdir(survive.folder)
    ['fit-0']

    Args:
        folder: the folder of the checkpoints, which all machines share.
        every: the time between two saves, such as ``"10min"``, or a number of steps, such as ``500`` or ``"500steps"``.
        keep: how many of the newest checkpoints to keep.
        stateless: callbacks of which nothing needs to be kept.

    Raises:
        InputError: an argument is of another kind.
    """

    def __init__(
        self, folder: str | os.PathLike[str], every: str | int = "10min", keep: int = 2, *, stateless: Sequence[Any] = ()
    ) -> None:
        super().__init__()
        self.folder = Path(path_text(folder, "Survive"))
        self.every = Interval.of(every)
        if type(keep) is not int or keep < 1:
            raise InputError(f"Survive takes keep=, how many checkpoints to keep, 1 or more; got {short(keep)}")
        self.keep, self._stateless = keep, stateless
        self._stop = StopRequest.of_process()
        self._resumed: SavedRun | None = None
        self._n_failed = 0

    writes_apart = True
    """Whether checkpoints are written by a thread, while training goes on."""

    # What RunKeeper asks

    def begin(self, trainer: Any, arguments: dict[str, Any]) -> RunPosition | None:
        """Find the newest checkpoint of this ``fit``; return where it goes on."""
        self._trainer = trainer
        self._open(trainer.ranks)
        self._data: Any = None
        self._states: CallbackStates | None = None
        resumed = on_rank_0(self._ranks.processes, lambda: self._newest(arguments.get("callbacks")))
        self._resumed = resumed
        self.first_epoch = arguments.get("initial_epoch") or 0
        self._at_begin = self._at_opening = random_states()
        position = None
        if resumed is not None:
            state, epochs = resumed.state, arguments.get("epochs") or 1
            position = RunPosition(**state["position"])
            self.n_steps, self.seed, self.first_epoch = state["n_steps"], state["seed"], state["first_epoch"]
            self._is_over = position.epoch >= epochs or state["stopped_at"] == epochs
            arguments["initial_epoch"] = epochs if self._is_over else position.epoch
            if self._leads:
                self._at_begin = state["random"]["begin"]
                set_random_states(self._at_begin)
            self._say_where(f"epoch {position.epoch + 1}, step {position.step}")
        else:
            self.seed = self._ranks.processes.broadcast(secrets.randbits(31), "the seed of shuffles")
        self._begin_saving()
        return position

    def _open(self, ranks: TrainerRanks) -> None:
        key = str(self.folder.absolute())
        self._fit = _fits[key] = _fits.get(key, -1) + 1
        self._ranks, self._place = ranks, FitFolder(self.folder, self._fit)
        self.n_steps, self._is_over = 0, False
        self._pending: tuple[PendingSave, int] | None = None
        self._room: Room | None = None

    def _begin_saving(self) -> None:
        self._saved_s, self._n_saved = time.monotonic(), self.n_steps
        if not self._is_over:
            notes.note_begin(self._fit, self.n_steps)
        self._stop.listen()

    @property
    def _leads(self) -> bool:
        return self._ranks.processes.rank == 0

    def _say(self, text: str) -> None:
        if self._leads:
            say(text)

    def _newest(self, callbacks: Any) -> SavedRun | None:
        """Find the newest checkpoint, and check that the callbacks' states can be kept; rank 0 alone does."""
        self._states = CallbackStates(list(callbacks or ()), self._stateless, self._trainer.inner)
        return self._place.newest("position")

    def _say_where(self, where: str) -> None:
        assert self._resumed is not None
        if self._is_over:
            self._say(f"this fit had ended; its result is that of '{self._resumed.prefix}'")
        else:
            self._say(f"goes on from '{self._resumed.prefix}' ({where})")
        before, now = self._resumed.state["made_by"], made_by()
        changed = [key for key in now if now[key] != before.get(key)]
        if changed:
            self._say(f"since it was saved, {' and '.join(changed)} changed: its numbers may be others'")

    def see_py_dataset(self, data: keras.utils.PyDataset) -> None:
        """Note a ``PyDataset``, which may have a random state of its own."""
        self._data = data if hasattr(data, "get_state") and hasattr(data, "set_state") else None

    def before_opening(self, number: int) -> None:
        """Note the random numbers' states, or set those of the opening at which the run goes on."""
        if self._resumed is not None and not self._is_over and self._leads:
            state = self._resumed.state["random"]
            set_random_states(state["opening"])
            if self._data is not None and state["data"] is not None:
                self._data.set_state(state["data"])
        self._at_opening, self._opened_s = random_states(), time.monotonic()
        self._data_at_opening = self._data.get_state() if self._data is not None else None

    def before_step(self, batch: Batch, position: RunPosition) -> None:
        """Save or leave, if it is time for it."""
        if self._resumed is not None:
            self._check_data(batch, self._resumed.state)
            self._resumed = None
        self._between(lambda: self._state(position, digest_of(batch, self._ranks.processes)))
        self.n_steps += 1
        notes.note_step(self._fit, self.n_steps)

    def _between(self, state: Callable[[], dict[str, Any]], is_end: bool = False) -> None:
        """Save a state between two steps, or at the end, and leave, if it is time for it."""
        due = self.every.share(self.n_steps - self._n_saved, time.monotonic() - self._saved_s)
        wish = LEAVE if self._stop.is_asked else SAVE if self._leads and (is_end or due >= 1) else NOTHING
        decision, is_busy = agreed(self._ranks.processes, wish, self._pending is not None and self._pending[0].is_busy)
        is_last = is_end or decision == LEAVE
        if is_last or not is_busy:
            self._advance(to_end=is_last)
        if decision != NOTHING and self._pending is None:
            is_apart = self.writes_apart and not is_last
            self._begin_save(state(), 1 if is_end else self.keep, is_apart, is_leaving=decision == LEAVE)
            if not is_apart:
                self._advance(to_end=True, is_leaving=decision == LEAVE)
        elif self.n_steps == self._n_saved + 1 and self._room is None and self.writes_apart:
            self._room = room_for(self._ranks.kept, self._ranks.processes)
        if is_end:
            self._room = None
        if decision == LEAVE:
            code = int(os.environ.get(notes.LEAVING_CODE, LEAVING_CODE))
            notes.note(notes.LEFT)
            self._say(f"was asked to stop, has saved '{self._place.prefix(self.n_steps)}', and leaves with {code}")
            sys.exit(code)

    def _check_data(self, batch: Batch, state: dict[str, Any]) -> None:
        digest = digest_of(batch, self._ranks.processes)
        if digest != state["digest"] and state["digest"]:
            self._say(
                "the data isn't what it was when the run was saved: the batch with which it goes on is another one, so that "
                "samples may come twice or never; give shuffles and random augmentation a seed, or a PyDataset get_state() "
                "and set_state(state)"
            )
        if self._leads and (seconds := time.monotonic() - self._opened_s) >= 1:
            self._say(f"read and dropped the data up to there in {seconds:.0f} s")
        if self._leads and are_equal(random_states(), state["random"]["opening"]):
            set_random_states(state["random"]["now"])  # the data draws none, so that these go on as well

    # Saves

    def _state(self, position: RunPosition, digest: str, is_end: bool = False) -> dict[str, Any]:
        """Return what a checkpoint has beside the variables; all ranks call it, and rank 0's counts."""
        counts = self._counted()
        if not self._leads or self._states is None:
            return {}
        random = {"begin": self._at_begin, "opening": self._at_opening, "now": random_states()}
        return {
            "position": asdict(position),
            "n_steps": self.n_steps,
            "first_epoch": self.first_epoch,
            "seed": self.seed,
            "stopped_at": self.params["epochs"] if is_end and self._trainer.stop_training else None,
            "random": {**random, "data": getattr(self, "_data_at_opening", None)},
            "digest": digest,
            **counts,
            "callbacks": self._states.get(),
            "history": (list(self.history.epoch), {name: list(values) for name, values in self.history.history.items()}),
            "made_by": made_by(),
        }

    def _begin_save(self, state: dict[str, Any], keep: int, is_apart: bool, is_leaving: bool) -> None:
        ranks, content = self._ranks, {"position": state["position"]} if "position" in state else {}
        self._saved_s, self._n_saved = time.monotonic(), self.n_steps
        ranks.catch_up()
        with self._failing(is_leaving), own_values():
            beside = Beside(content, ranks.objects() if ranks.rank == 0 else None, entries=as_entries(state))
            if is_apart and self._room is None:
                self._room = room_for(ranks.kept, ranks.processes, is_reported=True)
            room = self._room if is_apart else None
            save = PendingSave(self._place.prefix(self.n_steps), ranks.kept, ranks.processes, beside, keep, room=room)
            self._pending = save, self.n_steps

    def _advance(self, to_end: bool, is_leaving: bool = False) -> None:
        """Have a save that is under way take its next step, or all of them."""
        while self._pending is not None:
            (save, n_steps), self._pending = self._pending, None
            with self._failing(is_leaving), own_values():
                if not save.advance():
                    self._pending = save, n_steps
                else:
                    self._n_failed = 0
                    notes.note(notes.SAVED, saved=[self._fit, n_steps])
            if not to_end:
                break

    @contextmanager
    def _failing(self, is_leaving: bool) -> Iterator[None]:
        """Tell of a save that fails within this context, and go on, unless too many have failed."""
        try:
            yield
        except InputError:
            raise
        except TensorOptError as error:  # the same on all ranks
            self._n_failed += 1
            if self._n_failed == MOST_FAILED or is_leaving:
                notes.note(notes.REFUSED, error=str(error))  # a full disk is full at the next start too
                raise
            self._say(f"{str(error).rstrip('.')}; training goes on, and the next save is tried when it is due")

    def _metric_keys(self) -> list[str | None]:
        metrics = getattr(self._trainer, "metrics", ())
        return [self._ranks.key_of(inner(variable)) for metric in metrics for variable in metric.variables]

    def _counted(self) -> dict[str, Any]:
        """Return the metrics so far, and how often random operators have drawn; all ranks call it."""
        metrics = [None if key is None else self._ranks.value(key) for key in self._metric_keys()]
        runs = dict(ChainMap(*self._ranks.processes.gather(self._ranks.execution.engine.runs, "random operators")))
        return {"metrics": metrics, "runs": runs}

    def _set_counted(self, state: Mapping[str, Any], in_epoch: bool) -> None:
        for key, value in zip(self._metric_keys(), state["metrics"], strict=True):
            if in_epoch and key is not None and value is not None:
                self._ranks.assign(key, value)
        self._ranks.execution.engine.runs = state["runs"]

    # Hooks, after those of all other callbacks

    def on_train_begin(self, logs: Any = None) -> None:
        """Give a ``fit`` that had ended its history and its callbacks' states."""
        self._trainer.history = self.history
        if self._resumed is not None and self._is_over:
            self._set_states(self._resumed.state)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Set the state in which the run was saved."""
        if self._resumed is None or self._is_over or epoch != self._resumed.state["position"]["epoch"]:
            return
        state = self._resumed.state
        self._ranks.restore(self._resumed.prefix)
        self._set_counted(state, in_epoch=state["position"]["step"] > 0)
        self._set_states(state)

    def _set_states(self, state: dict[str, Any]) -> None:
        if self._leads and self._states is not None:
            self._states.set(state["callbacks"])
        epochs, history = state["history"]
        self.history.epoch, self.history.history = list(epochs), {name: list(values) for name, values in history.items()}

    def on_train_end(self, logs: Any = None) -> None:
        """Save the end of the run, or have what a ``fit`` that had ended has left."""
        if self._is_over and self._resumed is not None:
            self._ranks.restore(self._resumed.prefix)
            self._set_counted(self._resumed.state, in_epoch=False)
            if self._leads:
                set_random_states(self._resumed.state["random"]["now"])
            self._resumed = None
            return
        self._between(lambda: self._state(self._trainer.position, "", is_end=True), is_end=True)

    # Loops of the user's own

    def steps(self, n_steps: int, step: Any, state: dict[str, Any] | None = None) -> Iterator[int]:
        """Yield the numbers of a loop's steps, from the one at which the run goes on, and save between them.

        Args:
            n_steps: how many steps the whole loop has.
            step: what trains, planned already: a training step (``data=``), a trainer (``train_on_batch``), the trainer of a
                captured function, or the session of :func:`tensoropt.run`.
            state: what else the loop keeps, in numbers, text and arrays; its saved items are in it from the first step on.
        """
        loop: dict[str, Any] = {} if state is None else state
        self._open(ranks_of(step, loop))
        self._trainer = step
        resumed = self._resumed = on_rank_0(self._ranks.processes, lambda: self._place.newest("loop"))
        if resumed is not None:
            self._ranks.restore(resumed.prefix)
            self.n_steps = resumed.state["n_steps"]
            loop.update(resumed.state["loop"])
            self._set_counted(resumed.state, in_epoch=True)
            set_random_states(resumed.state["random"]["now"])
            self._say_where(f"step {self.n_steps}")
        self._begin_saving()

        def loop_state() -> dict[str, Any]:
            own = {"loop": loop, **self._counted(), "random": {"now": random_states()}}
            return {"n_steps": self.n_steps, **own, "made_by": made_by()}

        for number in range(self.n_steps, n_steps):
            self._between(loop_state)
            notes.note_step(self._fit, number + 1)
            yield number
            self.n_steps += 1
        self._between(loop_state, is_end=True)

    def set_model(self, model: Any) -> None:
        """Raise InputError if Keras itself trains, and not a trainer."""
        if not hasattr(model, "ranks"):
            raise InputError(
                f"Survive keeps what is trained on ranks, and Keras itself trains model '{model.name}'; start the script by "
                "tensoropt run, also on one device, or train the trainer that tensoropt.parallelize(model, ...) returns"
            )
        super().set_model(model)


@cache
def asked_for() -> Survive:
    """Return the callback that the command's options ask for; one for all ``fit`` of a script."""
    environ = os.environ
    return Survive(environ[notes.CHECKPOINT], environ.get(notes.EVERY, "10min"), int(environ.get(notes.KEEP, "2")))
