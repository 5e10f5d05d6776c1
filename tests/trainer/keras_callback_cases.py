"""What Keras's callbacks do, case by case, as ``keras_cases.py`` has what its trainer does."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from trainer.keras_cases import IN_ORDER, WHOLE, Case, Use, printed
from trainer.keras_models import BATCH, FOUR, STRUCTURE, N, X, Y


class Recorder(keras.callbacks.Callback):
    """What each hook is given, and what the model says then."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []
        for hook in (name for name in dir(keras.callbacks.Callback) if name.startswith("on_")):
            if "_batch_" not in hook or hook.split("_")[1] in ("train", "test", "predict"):
                setattr(self, hook, self._recording(hook))

    def _recording(self, hook: str) -> Callable[..., None]:
        def record(*arguments: Any, **named: Any) -> None:
            self.seen.append((hook, *arguments, named))

        return record


class Stopper(keras.callbacks.Callback):
    """Stops after two batches."""

    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def _stop(self, name: str) -> None:
        self.n += 1
        if self.n == 2:
            setattr(self.model, name, True)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._stop("stop_training")

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._stop("stop_evaluating")

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        self._stop("stop_predicting")


def _recorded(model: Any, folder: Path) -> Any:
    recorder = Recorder()
    given = {"callbacks": [recorder], "verbose": 0, "batch_size": BATCH}
    model.fit(X, Y, epochs=2, shuffle=False, validation_data=(X, Y), **given)
    model.evaluate(X, Y, **given)
    model.predict(X, **given)
    return recorder.seen, recorder.params


def steered(*make: Callable[[], keras.callbacks.Callback], epochs: int = 5, n: int = N, **named: Any) -> Use:
    """Train with callbacks and validation, on ``n`` samples; return the history and the rate at the end."""

    def use(model: Any, folder: Path) -> Any:
        callbacks = [each() for each in make]
        given = {"validation_data": (X[:13], Y[:13]), "epochs": epochs, "verbose": 0, **IN_ORDER, **named}
        history = model.fit(X[:n], Y[:n], callbacks=callbacks, **given)
        return history.history, history.epoch, float(model.optimizer.learning_rate)

    return use


def _stopped(method: str, *data: Any, **named: Any) -> Use:
    def use(model: Any, folder: Path) -> Any:
        found = getattr(model, method)(*data, callbacks=[Stopper()], verbose=0, batch_size=BATCH, **named)
        return (found.history, found.epoch) if isinstance(found, keras.callbacks.History) else found

    return use


def _halving(verbose: int = 0) -> keras.callbacks.Callback:
    return keras.callbacks.LearningRateScheduler(lambda epoch: 0.5**epoch, verbose=verbose)


def _reducing() -> keras.callbacks.Callback:
    return keras.callbacks.ReduceLROnPlateau("val_loss", 0.3, patience=0, min_delta=9.0, cooldown=1, min_lr=1e-3)


class Counter(keras.callbacks.Callback):
    """Counts in the model's weights."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.train_counter.assign_add(1)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.test_counter.assign_add(self.model.train_counter)


def _counted(model: Any, folder: Path) -> Any:
    given = {"epochs": 2, "verbose": 0, "validation_data": (STRUCTURE, FOUR), "callbacks": [Counter()], **IN_ORDER}
    model.fit(STRUCTURE, FOUR, **given)
    return float(model.train_counter), float(model.test_counter)


def _logged(model: Any, folder: Path) -> Any:
    """Two runs that write into one file."""
    for appends in (False, True):
        logger = keras.callbacks.CSVLogger(str(folder / "log.csv"), separator=";", append=appends)
        model.fit(X, Y, epochs=2, callbacks=[logger], verbose=0, validation_data=(X, Y), **IN_ORDER)
    rows = list(csv.reader((folder / "log.csv").read_text().splitlines(), delimiter=";"))
    return rows[0], [[float(value) for value in row] for row in rows[1:]]


def _kept(model: Any, folder: Path) -> Any:
    """Checkpoints after some batches, and of the best weights."""
    callbacks = [
        keras.callbacks.ModelCheckpoint(folder / "{epoch}-{batch}.weights.h5", save_weights_only=True, save_freq=3),
        keras.callbacks.ModelCheckpoint(
            folder / "best.weights.h5", monitor="val_weighed", mode="min", save_best_only=True, save_weights_only=True
        ),
        keras.callbacks.ModelCheckpoint(folder / "{epoch}-{loss:.6f}.keras"),
    ]
    model.fit(X, Y, epochs=3, callbacks=[callbacks], verbose=0, validation_data=(X, Y), **IN_ORDER)  # nested
    names = _files(folder)
    found = []
    for name in names:
        if name.endswith(".weights.h5"):
            model.load_weights(folder / name)
            found.append(model.get_weights())
        else:
            loaded = keras.models.load_model(folder / name)
            slots = [variable.numpy() for variable in loaded.optimizer.variables]
            found.append((loaded.get_weights(), slots, loaded.evaluate(X, Y, batch_size=BATCH, verbose=0)))
    return names, found


def _interrupted(model: Any, folder: Path) -> Any:
    """A run that is cut off in an epoch, and goes on by what was kept after each second batch."""

    def cut(batch: int, logs: Any) -> None:
        if batch == 1 and len(seen) == 2:
            raise KeyboardInterrupt

    seen: list[Any] = []
    begun = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: seen.append(epoch), on_train_batch_end=cut)
    given = {"epochs": 3, "verbose": 0, **IN_ORDER}

    def backup() -> keras.callbacks.Callback:
        return keras.callbacks.BackupAndRestore(folder / "backup")

    try:
        model.fit(X, Y, callbacks=[begun, backup()], **given)
    except KeyboardInterrupt:
        seen.append(_files(folder))
    history = model.fit(X, Y, callbacks=[backup()], **given)
    return seen, history.epoch, history.history, _files(folder)


def _files(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*"))


def _own_list(model: Any, folder: Path) -> Any:
    """A list of callbacks that the user made for the model."""
    history, recorder = keras.callbacks.History(), Recorder()
    given = keras.callbacks.CallbackList([recorder, history], add_history=False, model=model, epochs=2, verbose=0, steps=4)
    model.fit(X, Y, epochs=2, callbacks=given, verbose=0, **IN_ORDER)
    return recorder.seen, history.history, model.history.history


class Own(keras.callbacks.Callback):
    """Sets the rate, evaluates, predicts, reads weights and stops."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        model = self.model
        model.optimizer.learning_rate = 0.5**epoch
        self.seen.append((model.evaluate(X[:5], Y[:5], verbose=0), model.predict(X[:5], verbose=0), model.get_weights()))
        model.stop_training = epoch == 1

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append(batch)


def _by_own(model: Any, folder: Path) -> Any:
    own = Own()
    return model.fit(X, Y, epochs=4, callbacks=[own], verbose=0, **IN_ORDER).history, own.seen


def _not_a_number(model: Any, folder: Path) -> Any:
    """An epoch that is cut short by a loss that is no number, of which nothing is left."""
    x, before = X.copy(), model.get_weights()
    x[3] = np.nan
    history = model.fit(x, Y, epochs=3, callbacks=[keras.callbacks.TerminateOnNaN()], verbose=0, **IN_ORDER)
    model.set_weights(before)
    return history.epoch


CALLBACKS = (
    Case("what hooks are given", _recorded),
    Case("a callback of the user's own", _by_own),
    Case("TerminateOnNaN", steered(keras.callbacks.TerminateOnNaN, epochs=2)),
    Case("TerminateOnNaN ends training", _not_a_number),
    Case("training stops in an epoch", _stopped("fit", X, Y, epochs=3, shuffle=False)),
    Case("evaluation stops", _stopped("evaluate", X, Y)),
    Case("prediction stops", _stopped("predict", X)),
    Case("EarlyStopping at a baseline", steered(lambda: keras.callbacks.EarlyStopping("loss", baseline=0.1, patience=2))),
    Case(
        "EarlyStopping restores from an epoch on",
        steered(
            lambda: keras.callbacks.EarlyStopping(
                "accuracy", mode="min", patience=1, restore_best_weights=True, start_from_epoch=1
            )
        ),
    ),
    Case("EarlyStopping of what isn't there", steered(lambda: keras.callbacks.EarlyStopping("nothing", mode="min"))),
    Case("ReduceLROnPlateau with a pause", steered(_reducing)),
    Case("LearningRateScheduler of one argument", steered(_halving)),
    Case("LearningRateScheduler says so", printed(steered(lambda: _halving(verbose=1)))),
    Case("EarlyStopping says so", printed(steered(lambda: keras.callbacks.EarlyStopping("val_loss", 9.0, 0, verbose=1)))),
    Case("callbacks count in the model's weights", _counted, "counting"),
    Case("CSVLogger appends", _logged),
    Case("ModelCheckpoint after some batches", _kept),
    Case("BackupAndRestore after an interruption", _interrupted),
    Case("a CallbackList of the user's own", _own_list),
    Case(
        "averages in place of weights for an evaluation",
        steered(lambda: keras.callbacks.SwapEMAWeights(), epochs=2),
        "averages",
    ),
    Case(
        "averages in place of weights after each epoch",
        steered(
            lambda: keras.callbacks.SwapEMAWeights(swap_on_epoch=True), epochs=2, n=WHOLE,
            validation_data=(X[:BATCH], Y[:BATCH]),
        ),
        "averages",
    ),
)  # fmt: skip
