"""Train embeddings in which samples of a class are near each other: a supervised contrastive loss over the batch.

    python examples/gallery/metric_learning.py
    tensoropt run -n 2 examples/gallery/metric_learning.py

The loss compares every sample with every other of the global batch, however the batch is sharded.
"""

import keras
import numpy as np
from keras import layers, ops

FEATURES, CLASSES, WIDTH, BATCH, STEPS = 20, 4, 8, 16, 3


class SupervisedContrastive(keras.losses.Loss):
    """The mean cross-entropy of which other samples of the batch are of the same class."""

    def __init__(self, temperature=0.2):
        super().__init__(reduction="sum_over_batch_size")
        self.temperature = temperature

    def call(self, classes, embedded):
        classes = ops.reshape(classes, (-1, 1))
        scores = ops.matmul(embedded, ops.transpose(embedded)) / self.temperature
        itself = ops.eye(ops.shape(scores)[0], dtype=scores.dtype)
        same = ops.cast(ops.equal(classes, ops.transpose(classes)), scores.dtype) - itself
        log_shares = ops.log_softmax(scores - 1e9 * itself, axis=1)
        log_shares = ops.where(same > 0, log_shares, ops.zeros_like(log_shares))
        return -ops.sum(log_shares, axis=1) / ops.maximum(ops.sum(same, axis=1), 1)


def create_model():
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            layers.Dense(32, activation="relu"),
            layers.Dense(WIDTH),
            layers.UnitNormalization(),
        ]
    )


def main():
    keras.utils.set_random_seed(1)
    random = np.random.default_rng(0)
    classes = random.integers(0, CLASSES, BATCH * STEPS)
    samples = random.normal(size=(CLASSES, FEATURES))[classes] + random.normal(size=(BATCH * STEPS, FEATURES))
    model = create_model()
    model.compile(keras.optimizers.Adam(1e-2), SupervisedContrastive())
    shown = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: print(step, logs))
    model.fit(samples, classes, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[shown])


if __name__ == "__main__":
    main()
