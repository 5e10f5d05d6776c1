"""One rank of the tests of text and tables, and of what values decide, under mpirun.

mpirun -n 2 preprocessing_worker.py [all]   raw columns, read by each rank, by rank 0, and given to all; by "all" losses
                                            that the labels' values decide; then an unknown word
"""

from __future__ import annotations

import sys

import keras
import numpy as np
import tensorflow as tf
from texts import BATCH, batches, columns, model, plain

import tensoropt

trainer = tensoropt.parallelize(model(), keras.optimizers.SGD(0.1), "mse", batch_size=BATCH, cluster="v100-1x2")
expected = plain()


def same(ours: object, theirs: object) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)  # Keras's means of losses are float32


# Every rank reads; by "all" the last batch is smaller.
IS_ALL = "all" in sys.argv
n = 3 * BATCH - 2 if IS_ALL else 2 * BATCH
ours, theirs = (each.fit(batches(n), verbose=0, shuffle=False) for each in (trainer, expected))
same(ours.history["loss"], theirs.history["loss"])
# Rank 0 reads, and sends text.
for each in (trainer, expected):
    each.fit(((x, y) for x, y in batches(2 * BATCH)), verbose=0)
given, labels = columns(BATCH)
same(trainer.train_on_batch(given, labels), expected.train_on_batch(given, labels))
one_sample = {name: value[:1] for name, value in given.items()}  # which isn't cut
np.testing.assert_allclose(trainer.predict(one_sample, verbose=0), expected.predict(one_sample, verbose=0), rtol=1e-9)
for one, other in zip(trainer.get_weights(), expected.get_weights(), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
print("as on one device", flush=True)


def above_average(y: tf.Tensor, p: tf.Tensor) -> tf.Tensor:
    """The labels decide how many of the losses count."""
    return tf.reduce_mean(tf.boolean_mask(tf.abs(y - p), y > tf.reduce_mean(y)))


def dense(loss: object, **options: object) -> list[float]:
    keras.utils.set_random_seed(2)
    made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    if options:
        made = tensoropt.parallelize(made, "sgd", loss, **options)
    else:
        made.compile("sgd", loss, jit_compile=False)
    return made.fit(given["amount"], labels > 0, batch_size=BATCH, epochs=3, verbose=0, shuffle=False).history["loss"]


if IS_ALL:
    for loss in ("hinge", above_average):
        same(dense(loss, batch_size=BATCH, cluster="v100-1x2"), dense(loss))
    print("values decide", flush=True)
unknown = {**given, "word": tf.constant([["ant"]] * (BATCH - 1) + [["gnu"]])}  # on the last rank
trainer.fit(unknown, labels, verbose=0, shuffle=False)
