"""What Keras's trainer does, case by case: each is run by our trainer and by plain Keras, and must return the same.

A case is a function of a trainer or a model, and of an empty folder. What it returns is compared, and so are the weights.
``docs/how-to/keras.md`` says what is refused, and what differs on purpose.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.keras_models import BATCH, BITS, CLASSES, FOUR, N, NUMBERS, WEIGHTS, X, X2, Y

Use = Callable[[Any, Path], Any]
IN_ORDER = {"shuffle": False, "batch_size": BATCH}
# In whole batches: Keras averages the losses of several results by batches, and the trainer by samples.
WHOLE = 3 * BATCH
NAMED = {"left": X[:WHOLE], "right": X2[:WHOLE]}, {"number": NUMBERS[:WHOLE], "class": Y[:WHOLE]}
LISTED = [X[:WHOLE], X2[:WHOLE]], [NUMBERS[:WHOLE], FOUR[:WHOLE], NUMBERS[:WHOLE]]
BY_NAME = {"number": WEIGHTS[:WHOLE], "class": WEIGHTS[:WHOLE][::-1]}
CLASS_WEIGHTS = {label: 0.5 + label for label in range(CLASSES)}


@dataclass(frozen=True)
class Case:
    """A use of a trainer.

    Attributes:
        kind: the model's, in ``keras_models.KINDS``.
    """

    name: str
    use: Use
    kind: str = "classes"


def fit(*data: Any, **named: Any) -> Use:
    """Train, and return the history."""
    given = {"epochs": 2, "verbose": 0, **named}

    def use(model: Any, folder: Path) -> Any:
        called = [each() if callable(each) else each for each in data]
        options = {name: each() if callable(each) else each for name, each in given.items()}
        history = model.fit(*called, **options)
        return history.history, history.epoch, history.params

    return use


def call(method: str, *data: Any, **named: Any) -> Use:
    """Train for an epoch, and return what another method gives, twice."""

    def use(model: Any, folder: Path) -> Any:
        model.fit(*_data_of(model), epochs=1, verbose=0, **IN_ORDER)
        return [getattr(model, method)(*(each() if callable(each) else each for each in data), **named) for _ in range(2)]

    return use


def _data_of(model: Any) -> Any:
    names = model.name.removesuffix("_trainer")
    return {"by_name": NAMED, "in_order": LISTED, "regularized": (X, BITS)}.get(names, (X, Y))


# Data


def dataset(*parts: Any, size: int = BATCH, repeats: bool = False) -> Callable[[], tf.data.Dataset]:
    def make() -> tf.data.Dataset:
        found = tf.data.Dataset.from_tensor_slices(parts if len(parts) > 1 else parts[0]).batch(size)
        return found.repeat() if repeats else found

    return make


def generated(*parts: Any, n: int = N, forever: bool = False) -> Callable[[], Iterator[Any]]:
    def make() -> Iterator[Any]:
        while True:
            for start in range(0, n, BATCH):
                yield keras.tree.map_structure(lambda value: value[start : min(start + BATCH, n)], parts)  # noqa: B023
            if not forever:
                return

    return make


class Batches(keras.utils.PyDataset):
    """Batches by their number; after each epoch in the order of another first sample."""

    def __init__(self, *parts: Any, as_list: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.parts, self.as_list, self.epoch = parts, as_list, 0

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        start = 2 * self.epoch + index * BATCH
        found = keras.tree.map_structure(lambda value: np.roll(value, start, 0)[:BATCH], self.parts)
        return list(found) if self.as_list else found

    def on_epoch_end(self) -> None:
        self.epoch += 1


FITTING = (
    Case("arrays, a part of a batch at the end", fit(X, Y, **IN_ORDER)),
    Case("shuffled arrays after a seed", lambda model, folder: _seeded(fit(X, Y, batch_size=BATCH))(model, folder)),
    Case("shuffled in each batch", fit(X[:24], BITS[:24], shuffle="batch", batch_size=BATCH), "bits"),
    Case("no shuffle", fit(X, Y, shuffle=False, batch_size=BATCH, epochs=3, initial_epoch=1)),
    Case("no epochs", fit(X, Y, **IN_ORDER, epochs=0)),
    Case("first epochs left out, with validation", fit(X, Y, **IN_ORDER, epochs=4, initial_epoch=2, validation_data=(X, Y))),
    Case("fewer samples than a batch", fit(X[:5], Y[:5], **IN_ORDER)),
    Case("tensors", lambda model, folder: fit(tf.constant(X), tf.constant(Y), **IN_ORDER)(model, folder)),
    Case("single precision, and labels as a column", fit(X.astype("float32"), Y[:, None].astype("int32"), **IN_ORDER)),
    Case("sample weights", fit(X, Y, sample_weight=WEIGHTS, **IN_ORDER)),
    Case("class weights", fit(X, Y, class_weight=CLASS_WEIGHTS, **IN_ORDER)),
    Case("class weights for a dataset", fit(dataset(X, Y), class_weight=CLASS_WEIGHTS)),
    Case("a dataset of weighted samples", fit(dataset(X, Y, WEIGHTS))),
    Case("a generator of weighted samples", fit(generated(X, Y, WEIGHTS, forever=True), steps_per_epoch=4)),
    Case("a generator that ends", fit(generated(X, Y), epochs=1)),
    Case("a PyDataset that changes after an epoch", fit(lambda: Batches(X, Y), shuffle=False, epochs=3)),
    Case("a PyDataset of lists", fit(lambda: Batches(X, Y, as_list=True), shuffle=False)),
    Case("a PyDataset with weights, read by threads", fit(lambda: Batches(X, Y, WEIGHTS, workers=2), shuffle=False)),
    Case("steps of an epoch of arrays", fit(X, Y, **IN_ORDER, steps_per_epoch=2, epochs=4)),
    Case("steps of an epoch that go on into the next pass", fit(dataset(X, Y, repeats=True), steps_per_epoch=3, epochs=3)),
    Case("a dataset of fewer steps than an epoch has", fit(dataset(X, Y), steps_per_epoch=3, epochs=2)),
    Case("validation by a split", fit(X, Y, **IN_ORDER, validation_split=0.3)),
    Case("validation by a split of weighted samples", fit(X, Y, sample_weight=WEIGHTS, **IN_ORDER, validation_split=0.3)),
    Case("validation with weights", fit(X, Y, **IN_ORDER, validation_data=(X, Y, WEIGHTS))),
    Case("validation every other epoch", fit(X, Y, **IN_ORDER, validation_data=(X, Y), validation_freq=2, epochs=5)),
    Case("validation after some epochs", fit(X, Y, **IN_ORDER, validation_data=(X, Y), validation_freq=[1, 3], epochs=4)),
    Case("validation by some steps", fit(X, Y, **IN_ORDER, validation_data=(X, Y), validation_steps=2)),
    Case("validation in other batches", fit(X, Y, **IN_ORDER, validation_data=(X, Y), validation_batch_size=5)),
    Case(
        "validation by some steps of what never ends",
        fit(X, Y, **IN_ORDER, validation_data=generated(X, Y, n=BATCH, forever=True), validation_steps=3),
    ),
    Case(
        "validation by some steps of a repeated dataset",
        fit(X, Y, **IN_ORDER, validation_data=dataset(X, Y, repeats=True), validation_steps=3),
    ),
    Case("validation by a PyDataset", fit(X, Y, **IN_ORDER, validation_data=lambda: Batches(X, Y))),
    Case("at most so many epochs and steps", lambda model, folder: _at_most(fit(X, Y, **IN_ORDER, epochs=4))(model, folder)),
    Case("lines on the screen", lambda model, folder: printed(fit(X, Y, **IN_ORDER, verbose=2))(model, folder)),
    Case("by name", fit(*NAMED, **IN_ORDER, validation_data=NAMED), "by name"),
    Case("by name, weighted", fit(*NAMED, sample_weight=BY_NAME, **IN_ORDER), "by name"),
    Case("by name, one weight for all results", fit(*NAMED, sample_weight=WEIGHTS[:WHOLE], **IN_ORDER), "by name"),
    Case("by name, a dataset", fit(dataset(*NAMED), validation_data=dataset(*NAMED)), "by name"),
    Case("by name, a PyDataset", fit(lambda: Batches(*NAMED), shuffle=False), "by name"),
    Case("in order", fit(*LISTED, **IN_ORDER, validation_split=1 / 3), "in order"),
    Case("in order, weighted", fit(*LISTED, sample_weight=[WEIGHTS[:WHOLE]] * 3, **IN_ORDER), "in order"),
    Case("in order, a generator", fit(generated((X, X2), (NUMBERS, FOUR, NUMBERS), n=WHOLE, forever=True), steps_per_epoch=3), "in order"),
    Case("losses that layers add, metrics with a state", fit(X, BITS, **IN_ORDER, validation_data=(X, BITS)), "bits"),
    Case("averages of weights", fit(X, Y, **IN_ORDER, validation_data=(X, Y)), "averages"),
    Case("a scaled loss", fit(X, Y, **IN_ORDER, epochs=3), "loss scale"),
    Case("run eagerly", fit(X, Y, **IN_ORDER), "eager"),
    Case("several steps in an execution", fit(X, Y, **IN_ORDER, validation_data=(X, Y)), "several steps"),
    Case("compiled by XLA", fit(X[:WHOLE], BITS[:WHOLE], **IN_ORDER), "compiled by XLA"),
    Case("the loss scaled by itself", fit(X, Y, **IN_ORDER), "scales by itself"),
    Case("losses that layers add alone", fit(X, **IN_ORDER), "no loss"),
    Case("results without a loss", fit(LISTED[0], NUMBERS[:WHOLE], **IN_ORDER), "results without a loss"),
)


def _seeded(use: Use) -> Use:
    def seeded(model: Any, folder: Path) -> Any:
        keras.utils.set_random_seed(11)
        return use(model, folder)

    return seeded


def _at_most(use: Use) -> Use:
    def limited(model: Any, folder: Path) -> Any:
        try:
            keras.config.set_max_epochs(2)
            keras.config.set_max_steps_per_epoch(3)
            return use(model, folder)
        finally:
            keras.config.set_max_epochs(None)
            keras.config.set_max_steps_per_epoch(None)

    return limited


def printed(use: Use) -> Use:
    """What is printed, but for times."""

    def printing(model: Any, folder: Path) -> Any:
        with redirect_stdout(io.StringIO()) as out:
            use(model, folder)
        return re.sub(r"\d+m?s(/step|/epoch)?", "T", out.getvalue())

    return printing


# Evaluating and predicting


def _each_batch(model: Any, folder: Path) -> Any:
    """Steps on single batches, between which metrics begin again."""
    found: list[Any] = [model.train_on_batch(X[:BATCH], Y[:BATCH])]
    found.append(model.train_on_batch(X[8:16], Y[8:16], return_dict=True))
    found.append(model.get_metrics_result())
    found.append(model.train_on_batch(X[:BATCH], Y[:BATCH], class_weight=CLASS_WEIGHTS))
    found.append(model.train_on_batch(X[:BATCH], Y[:BATCH], sample_weight=WEIGHTS[:BATCH], return_dict=True))
    found.append(model.train_on_batch(X[:3], Y[:3]))
    found.append(model.test_on_batch(X[:BATCH], Y[:BATCH]))
    found.append(model.test_on_batch(X[:5], Y[:5], sample_weight=WEIGHTS[:5], return_dict=True))
    found.append(model.predict_on_batch(X[:5]))
    model.reset_metrics()
    found.append(model.evaluate(X, Y, batch_size=BATCH, verbose=0))
    return found


def _described(model: Any, folder: Path) -> Any:
    """What a model says of itself."""
    lines: list[str] = []
    model.summary(print_fn=lambda line, **_: lines.append(line))
    shapes = model.input_shape, model.output_shape, len(model.inputs), len(model.outputs)
    kinds = [isinstance(layer, keras.layers.Dense) for layer in model.layers]
    found = model.get_layer("last"), model.get_layer(index=0)
    return model.count_params(), [each.name for each in model.layers], kinds, shapes, [each.name for each in found], bool(lines)


EVALUATING = (
    Case("evaluate in the order of metrics", call("evaluate", X, Y, batch_size=BATCH, verbose=0)),
    Case("evaluate by name", call("evaluate", X, Y, batch_size=BATCH, verbose=0, return_dict=True)),
    Case("evaluate weighted samples", call("evaluate", X, Y, sample_weight=WEIGHTS, batch_size=BATCH, verbose=0)),
    Case("evaluate some steps", call("evaluate", X, Y, batch_size=BATCH, steps=2, verbose=0)),
    Case("evaluate a dataset", call("evaluate", dataset(X, Y, size=5), verbose=0)),
    Case("evaluate a generator", call("evaluate", generated(X, Y, forever=True), steps=3, verbose=0)),
    Case("evaluate a PyDataset", call("evaluate", lambda: Batches(X, Y), verbose=0, return_dict=True)),
    Case("evaluate, lines on the screen", printed(call("evaluate", X, Y, batch_size=BATCH, verbose=2))),
    Case("evaluate results by name", call("evaluate", *NAMED, batch_size=BATCH, verbose=0, return_dict=True), "by name"),
    Case("evaluate results in order", call("evaluate", *LISTED, batch_size=BATCH, verbose=0), "in order"),
    Case("evaluate metrics with a state", call("evaluate", X, BITS, batch_size=BATCH, verbose=0), "bits"),
    Case("evaluate averages", call("evaluate", X, Y, batch_size=BATCH, verbose=0), "averages"),
    Case("predict with a part of a batch at the end", call("predict", X, batch_size=BATCH, verbose=0)),
    Case("predict fewer samples than a batch", call("predict", X[:3], batch_size=BATCH, verbose=0)),
    Case("predict some steps", call("predict", X, batch_size=BATCH, steps=2, verbose=0)),
    Case("predict a dataset with labels", call("predict", dataset(X, Y), verbose=0)),
    Case("predict a dataset without", call("predict", dataset(X, size=5), verbose=0)),
    Case("predict a generator", call("predict", generated(X, forever=True), steps=3, verbose=0)),
    Case("predict a PyDataset", call("predict", lambda: Batches(X, Y), verbose=0)),
    Case("predict by name", call("predict", NAMED[0], batch_size=BATCH, verbose=0), "by name"),
    Case("predict in order", call("predict", LISTED[0], batch_size=BATCH, verbose=0), "in order"),
    Case("predict several steps in an execution", call("predict", X, batch_size=BATCH, verbose=0), "several steps"),
    Case("single batches", _each_batch),
    Case("what a model says of itself", _described),
)


# Callbacks


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


def steered(*make: Callable[[], keras.callbacks.Callback], epochs: int = 5, **named: Any) -> Use:
    """Train with callbacks and validation; return the history and the rate at the end."""

    def use(model: Any, folder: Path) -> Any:
        callbacks = [each() for each in make]
        given = {"validation_data": (X[:13], Y[:13]), "epochs": epochs, "verbose": 0, **IN_ORDER, **named}
        history = model.fit(X, Y, callbacks=callbacks, **given)
        return history.history, history.epoch, float(model.optimizer.learning_rate)

    return use


def _stopped(method: str, *data: Any, **named: Any) -> Use:
    return lambda model, folder: _plainly(getattr(model, method)(*data, callbacks=[Stopper()], verbose=0, batch_size=BATCH, **named))


def _plainly(found: Any) -> Any:
    return (found.history, found.epoch) if isinstance(found, keras.callbacks.History) else found


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
    model.fit(X, Y, epochs=3, callbacks=callbacks, verbose=0, validation_data=(X, Y), **IN_ORDER)
    names = sorted(file.name for file in folder.iterdir())
    found = []
    for name in names:
        if name.endswith(".weights.h5"):
            model.load_weights(folder / name)
            found.append(model.get_weights())
        else:
            loaded = keras.models.load_model(folder / name)
            found.append((loaded.get_weights(), loaded.evaluate(X, Y, batch_size=BATCH, verbose=0)))
    return names, found


def _interrupted(model: Any, folder: Path) -> Any:
    """A run that is cut off in an epoch, and goes on by what was kept after each second batch."""

    def cut(batch: int, logs: Any) -> None:
        if batch == 1 and len(seen) == 2:
            raise KeyboardInterrupt

    seen: list[int] = []
    begun = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: seen.append(epoch), on_train_batch_end=cut)
    given = {"epochs": 3, "verbose": 0, **IN_ORDER}

    def backup() -> keras.callbacks.Callback:
        return keras.callbacks.BackupAndRestore(folder / "backup")

    try:
        model.fit(X, Y, callbacks=[begun, backup()], **given)
    except KeyboardInterrupt:
        seen.append(-1)
    history = model.fit(X, Y, callbacks=[backup()], **given)
    return seen, history.epoch, history.history


def _own_list(model: Any, folder: Path) -> Any:
    """A list of callbacks that the user made for the model."""
    history, recorder = keras.callbacks.History(), Recorder()
    given = keras.callbacks.CallbackList([recorder, history], add_history=False, model=model, epochs=2, verbose=0, steps=4)
    model.fit(X, Y, epochs=2, callbacks=given, verbose=0, **IN_ORDER)
    return recorder.seen, history.history, model.history.history


CALLBACKS = (
    Case("what hooks are given", _recorded),
    Case("training stops in an epoch", _stopped("fit", X, Y, epochs=3, shuffle=False)),
    Case("evaluation stops", _stopped("evaluate", X, Y)),
    Case("prediction stops", _stopped("predict", X)),
    Case("EarlyStopping at a baseline", steered(lambda: keras.callbacks.EarlyStopping("val_loss", baseline=0.1, patience=2))),
    Case(
        "EarlyStopping restores from an epoch on",
        steered(
            lambda: keras.callbacks.EarlyStopping(
                "accuracy", mode="min", patience=1, restore_best_weights=True, start_from_epoch=1
            )
        ),
    ),
    Case("EarlyStopping of what isn't there", steered(lambda: keras.callbacks.EarlyStopping("val_nothing", mode="min"))),
    Case(
        "ReduceLROnPlateau with a pause",
        steered(
            lambda: keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.3, patience=0, min_delta=9.0, cooldown=1, min_lr=1e-3)
        ),
    ),
    Case("LearningRateScheduler of one argument", steered(lambda: keras.callbacks.LearningRateScheduler(lambda epoch: 0.5**epoch))),
    Case("LearningRateScheduler says so", printed(steered(lambda: keras.callbacks.LearningRateScheduler(lambda e: 0.5**e, verbose=1)))),
    Case("EarlyStopping says so", printed(steered(lambda: keras.callbacks.EarlyStopping("val_loss", 9.0, 0, verbose=1)))),
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
        steered(lambda: keras.callbacks.SwapEMAWeights(swap_on_epoch=True), epochs=2),
        "averages",
    ),
)
CASES = {case.name: case for case in (*FITTING, *EVALUATING, *CALLBACKS)}
