"""Models that are captured at their first batch, what they are trained by, and the comparison with plain Keras.

mpirun -n 2 deferred_cases.py FOLDER [all]    some cases on two ranks; a checkpoint that is loaded before any data
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from trainer.models import assert_same_weights

import tensoropt

BATCH = 8
RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
RNG = np.random.default_rng(0)
X, Y, LABELS = RNG.normal(size=(20, 7, 5)), RNG.normal(size=(20, 4)), RNG.integers(0, 2, (20, 1))
TOKENS = {"tokens": RNG.integers(0, 20, (20, 6)).astype("int32"), "mask": RNG.integers(0, 2, (20, 6)).astype("int32")}
WHOLE = 2 * BATCH
"""Samples of whole batches, where a case holds something else than a smaller last one, which is a program more."""
WHOLE_TOKENS = {name: value[:WHOLE] for name, value in TOKENS.items()}
EMULATED = {"collectives": "emulated", "parallelism": 2}


def contrastive(y: Any, p: Any) -> Any:
    """Labels of one class for results of four numbers."""
    y, distance = tf.cast(y, p.dtype)[:, 0], tf.reduce_sum(p**2, -1)
    return y * distance + (1 - y) * tf.maximum(1 - distance, 0)


def squared(y: Any, p: Any) -> Any:
    return tf.reduce_mean((y - p) ** 2, -1)


# Models


def averaged() -> keras.Model:
    layers = [keras.layers.Dense(6, "tanh"), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(4)]
    return keras.Sequential([keras.Input((None, 5)), *layers], name="m")


def unbuilt() -> keras.Model:
    return keras.Sequential([keras.layers.Dense(6), keras.layers.Flatten(), keras.layers.Dense(4)])


def of_two_results() -> keras.Model:
    inputs = keras.Input((7, 5))
    x = keras.layers.Flatten()(inputs)
    return keras.Model(inputs, [keras.layers.Dense(4)(x), keras.layers.Dense(3)(x)])


def backbone() -> keras.Model:
    """Inputs by name, of any length, as of a backbone with a head."""
    tokens, mask = keras.Input((None,), dtype="int32", name="tokens"), keras.Input((None,), dtype="int32", name="mask")
    x = keras.layers.Embedding(20, 8)(tokens)
    x = x + keras.layers.MultiHeadAttention(2, 4)(x, x, attention_mask=mask[:, None] > 0)
    x = keras.layers.Dropout(0.0)(keras.layers.LayerNormalization()(x))
    return keras.Model({"tokens": tokens, "mask": mask}, keras.layers.Dense(2)(x[:, 0]))


class Pooled(keras.Model):
    """A model that is no graph of layers, whose call takes a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.normalized = keras.layers.Embedding(20, 6), keras.layers.BatchNormalization()
        self.head = keras.layers.Dense(2)

    def call(self, x: Any, training: bool | None = None) -> Any:
        found = self.embedding(x["tokens"]) * keras.ops.cast(x["mask"], "float64")[..., None]
        return {"class": self.head(self.normalized(keras.ops.mean(found, 1), training=training))}


# Training


def fitted(x: Any, y: Any, **named: Any) -> Callable[[Any], Any]:
    given = {"epochs": 2, "verbose": 0, "shuffle": False, "batch_size": BATCH, **named}
    return lambda model: model.fit(x, y, **given).history


def padded(model: Any) -> Any:
    """Batches of lengths that the dataset doesn't tell, in another order each epoch.

    A rate is set, and weights are read, before the first batch is trained on.
    """
    seen: list[float] = []
    callbacks = [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2),
        keras.callbacks.LambdaCallback(on_train_begin=lambda logs: seen.append(float(np.sum(model.get_weights()[0])))),
    ]
    data = tf.data.Dataset.from_tensor_slices((X, LABELS)).shuffle(20, seed=5).padded_batch(BATCH, ([None, 5], [1]))
    given = {"validation_data": (X, LABELS), "validation_batch_size": BATCH, "callbacks": callbacks}
    return model.fit(data, epochs=3, verbose=0, **given).history, seen


def generated(model: Any) -> Any:
    def batches() -> Iterator[Any]:
        while True:
            yield X[:BATCH], LABELS[:BATCH]
            yield X[BATCH : 2 * BATCH], LABELS[BATCH : 2 * BATCH]

    return model.fit(batches(), epochs=2, steps_per_epoch=2, verbose=0).history


def bucketed(model: Any) -> Any:
    """Batches of two lengths, the last one of them smaller; then one length more that isn't trained on."""

    def batches() -> Iterator[Any]:
        for begin, length in ((0, 5), (8, 7), (16, 5)):
            yield X[begin : begin + BATCH, :length], LABELS[begin : begin + BATCH]

    specs = (tf.TensorSpec([None, None, 5], "float64"), tf.TensorSpec([None, 1], "int64"))
    known = tf.data.experimental.assert_cardinality(3)
    data = tf.data.Dataset.from_generator(batches, output_signature=specs).apply(known)
    history = model.fit(data, epochs=2, verbose=0).history
    evaluated = float(model.evaluate(X[:16, :1], LABELS[:16], batch_size=BATCH, verbose=0))
    return history, evaluated, float(np.sum(model.predict(X[:BATCH, :3], verbose=0)))


def by_batches(model: Any) -> Any:
    return [model.train_on_batch(X[:BATCH], LABELS[:BATCH]) for _ in range(2)]


def other_calls_first(model: Any) -> Any:
    evaluated = float(model.evaluate(X[:16], Y[:16], batch_size=BATCH, verbose=0))
    return evaluated, fitted(X[:WHOLE], Y[:WHOLE], sample_weight=np.arange(WHOLE) / 2)(model)


def with_labels_for_one_result(model: Any) -> Any:
    x, y = X[:WHOLE], Y[:WHOLE]
    return fitted(x, y, epochs=1)(model), fitted(x, [y, None], epochs=1)(model)


def predicted_first(model: Any) -> Any:
    return float(np.sum(model.predict_on_batch(X[:3]))), fitted(X[:WHOLE], Y[:WHOLE])(model)


def classes() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


CASES: dict[str, tuple[Callable[[], keras.Model], Callable[[], Any], Callable[[Any], Any]]] = {
    "padded batches": (averaged, lambda: contrastive, padded),
    "a result without a loss": (of_two_results, lambda: [squared, None], with_labels_for_one_result),
    "a backbone": (backbone, classes, fitted(TOKENS, LABELS)),
    "dictionaries": (Pooled, lambda: {"class": classes()}, fitted(WHOLE_TOKENS, {"class": LABELS[:WHOLE, 0]})),
    "train_on_batch": (averaged, lambda: contrastive, by_batches),
    "evaluate first": (averaged, lambda: squared, other_calls_first),
    "predict first": (averaged, lambda: "mse", predicted_first),
    "an unbuilt model": (unbuilt, lambda: "mse", fitted(X[:WHOLE], Y[:WHOLE])),
}
ON_RANKS = {
    "batches of several lengths": (averaged, lambda: contrastive, bucketed),
    "a generator": (averaged, lambda: contrastive, generated),
}


def trainer_of(model: keras.Model, loss: Any, **options: Any) -> Any:
    where = {} if "OMPI_COMM_WORLD_SIZE" in os.environ else EMULATED
    given = {"batch_size": BATCH, "cluster": "v100-1x2", **where, **options}
    return tensoropt.parallelize(model, keras.optimizers.Adam(1e-2), loss, **given)


def compared(case: str, **options: Any) -> Any:
    """Train a case by a trainer and by plain Keras, compare all numbers, and return the trainer."""
    make, loss, train = {**CASES, **ON_RANKS}[case]
    keras.utils.set_random_seed(1)
    trainer = trainer_of(make(), loss(), **options)
    assert trainer.deferred is not None
    ours = train(trainer)
    keras.utils.set_random_seed(1)
    plain = make()
    plain.compile(keras.optimizers.Adam(1e-2), loss(), jit_compile=False)
    tf.nest.map_structure(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-9), ours, train(plain))
    assert_same_weights(trainer.get_weights(), plain.get_weights(), 1e-9, 1e-12)
    return trainer


def main(folder: Path, is_all: bool) -> None:
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    for case in ON_RANKS:
        if is_all or case == "a generator":
            compared(case)
    # Each rank draws lengths of its own.
    trainer = trainer_of(averaged(), contrastive)
    data = tf.data.Dataset.from_tensor_slices((X, LABELS)).shuffle(20, seed=RANK).take(WHOLE)
    data = data.padded_batch(BATCH, ([None, 5], [1]))
    trainer.fit(data, epochs=2, verbose=0)
    trainer.save(folder / "ckpt")
    weights = trainer.get_weights()
    trainer = trainer_of(averaged(), contrastive)
    trainer.load(folder)
    assert trainer.fit(X, LABELS, epochs=2, verbose=0).epoch == []
    assert_same_weights(trainer.get_weights(), weights, 1e-7, 0)
    print("as on one device", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), "all" in sys.argv[2:])
