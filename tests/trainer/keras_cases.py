"""What Keras's trainer does, case by case: each is run by our trainer and by plain Keras, and must return the same.

A case is a function of a trainer or a model, and of an empty folder. What it returns is compared, and so are the weights.
``docs/how-to/keras.md`` says what is refused, and what differs.
"""

from __future__ import annotations

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
from trainer.keras_models import BATCH, BITS, CLASSES, FOUR, NUMBERS, OF_STEPS, STEPS, STRUCTURE, WEIGHTS, X2, N, X, Y

Use = Callable[[Any, Path], Any]
IN_ORDER = {"shuffle": False, "batch_size": BATCH}
WHOLE = 3 * BATCH
NAMED = {"left": X, "right": X2}, {"number": NUMBERS, "class": Y}
LISTED = [X, X2], [NUMBERS, FOUR, NUMBERS]
BY_NAME = {"number": WEIGHTS, "class": WEIGHTS[::-1]}
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


def unsized(*parts: Any) -> Callable[[], tf.data.Dataset]:
    """A dataset that doesn't tell its size."""
    return lambda: dataset(*parts)().filter(lambda *element: True)


def to_the_end(*parts: Any, **named: Any) -> Use:
    """Train on such a dataset, at whose end Keras begins another step, and evaluate it."""

    def use(model: Any, folder: Path) -> Any:
        found = fit(unsized(*parts), validation_data=unsized(*parts), **named)(model, folder)
        updates = model.optimizer.iterations
        return found, model.evaluate(unsized(*parts)(), verbose=0), int(updates)

    return use


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


def halved() -> list[keras.callbacks.Callback]:
    return [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / (epoch + 1))]


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
    Case("by name, one weight for all results", fit(*NAMED, sample_weight=WEIGHTS, **IN_ORDER), "by name"),
    Case("by name, run eagerly", fit(*NAMED, **IN_ORDER, validation_data=NAMED), "by name, eager"),
    Case("by name, a dataset", fit(dataset(*NAMED), validation_data=dataset(*NAMED)), "by name"),
    Case("by name, a PyDataset", fit(lambda: Batches(*NAMED), shuffle=False), "by name"),
    Case("in order", fit(*LISTED, **IN_ORDER, validation_split=1 / 3), "in order"),
    Case("in order, weighted", fit(*LISTED, sample_weight=[WEIGHTS] * 3, **IN_ORDER), "in order"),
    Case("in order, a generator", fit(generated(*map(tuple, LISTED), forever=True), steps_per_epoch=3), "in order"),
    Case(
        "losses that layers add, metrics with a state",
        fit(X[:WHOLE], BITS[:WHOLE], **IN_ORDER, validation_data=(X[:WHOLE], BITS[:WHOLE])),
        "bits",
    ),
    Case("losses that layers add to a part of a batch", fit(X, BITS, **IN_ORDER, validation_data=(X, BITS)), "bits"),
    Case("a weight for each step", fit(X, STEPS, sample_weight=OF_STEPS, **IN_ORDER), "steps"),
    Case("inputs in a structure", fit(STRUCTURE, FOUR, **IN_ORDER, validation_split=0.3), "counting"),
    Case("a metric of a rate that falls", fit(X, BITS, **IN_ORDER, validation_data=(X, BITS)), "a rate that falls"),
    Case("a metric of a rate that is set", fit(X, BITS, **IN_ORDER, callbacks=halved), "a rate that is set"),
    *(
        Case(f"data that ends, {kind}", to_the_end(X, Y, epochs=3), kind)
        for kind in ("classes", "averages", "loss scale", "eager", "several steps", "decay", "Nadam", "Lamb", "accumulated")
    ),
    Case("data that ends, whole batches", fit(lambda: unsized(X, Y)().unbatch().batch(BATCH, drop_remainder=True)), "decay"),
    Case("data that ends, a step of its own", to_the_end(X, BITS, epochs=2), "own step"),
    Case("data that ends, weighted", to_the_end(X, Y, WEIGHTS)),
    Case("data that ends, by name", to_the_end(*NAMED), "by name"),
    Case("data that ends, metrics of a rate", to_the_end(X, BITS), "a rate that falls"),
    Case("data that ends, metrics with a state", to_the_end(X, BITS), "bits"),
    Case("data that ends early", fit(dataset(X, Y), steps_per_epoch=3, epochs=3), "decay"),
    Case("averages of weights", fit(X, Y, **IN_ORDER, validation_data=(X, Y)), "averages"),
    Case("a scaled loss", fit(X, Y, **IN_ORDER, epochs=3), "loss scale"),
    Case("run eagerly", fit(X, Y, **IN_ORDER), "eager"),
    Case("several steps in an execution", fit(X, Y, **IN_ORDER, validation_data=(X, Y)), "several steps"),
    Case("compiled by XLA", fit(X[:WHOLE], BITS[:WHOLE], **IN_ORDER), "compiled by XLA"),
    Case("the loss scaled by itself", fit(X, Y, **IN_ORDER), "scales by itself"),
    Case("losses that layers add alone", fit(X, **IN_ORDER), "no loss"),
    Case("results without a loss", fit(LISTED[0], NUMBERS, **IN_ORDER), "results without a loss"),
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
    found.append(model.test_on_batch(X[:BATCH], Y[:BATCH]))
    found.append(model.predict_on_batch(X[:5]))
    model.reset_metrics()
    found.append(model.evaluate(X[:WHOLE], Y[:WHOLE], batch_size=BATCH, verbose=0))
    return found


def _each_smaller_batch(model: Any, folder: Path) -> Any:
    """Steps on single batches of fewer samples than planned."""
    found: list[Any] = [model.train_on_batch(X[:3], Y[:3])]
    found.append(model.test_on_batch(X[:5], Y[:5], sample_weight=WEIGHTS[:5], return_dict=True))
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
    names = [each.name for each in (*model.layers, *found)]
    return model.count_params(), names, kinds, shapes, bool(lines)


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
    Case("predict at random", call("predict", X, batch_size=BATCH, verbose=0), "always random"),
    Case("single batches", _each_batch),
    Case("single batches of fewer samples", _each_smaller_batch),
    Case("what a model says of itself", _described),
)
