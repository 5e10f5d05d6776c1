"""Train a small network by a larger one's answers (distillation), by a loss of the model's own.

    python examples/gallery/distillation.py
    tensoropt run -n 2 examples/gallery/distillation.py
"""

import keras
import numpy as np
from keras import layers, ops

SIZE, CLASSES, BATCH, STEPS = 12, 6, 16, 3


def network(filters):
    return keras.Sequential(
        [
            keras.Input((SIZE, SIZE, 1)),
            layers.Conv2D(filters, 3, 2, padding="same", activation="relu"),
            layers.MaxPooling2D(2, 1, padding="same"),
            layers.Conv2D(2 * filters, 3, 2, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dense(CLASSES),
        ]
    )


class Distiller(keras.Model):
    """A student that learns from labels, and from what a teacher says of the same images."""

    def __init__(self, student, teacher, share=0.1, temperature=3.0):
        super().__init__()
        self.student, self.teacher = student, teacher
        self.share, self.temperature = share, temperature
        teacher.trainable = False

    def call(self, images, training=None):
        return self.student(images, training=training)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        of_labels = super().compute_loss(x, y, y_pred, sample_weight, training)
        soft = ops.softmax(self.teacher(x, training=False) / self.temperature)
        said = ops.softmax(y_pred / self.temperature)
        of_teacher = ops.mean(keras.losses.kl_divergence(soft, said)) * self.temperature**2
        return self.share * of_labels + (1 - self.share) * of_teacher


def main():
    keras.utils.set_random_seed(1)
    random = np.random.default_rng(0)
    images = random.normal(size=(BATCH * STEPS, SIZE, SIZE, 1))
    classes = random.integers(0, CLASSES, len(images))
    model = Distiller(network(8), network(16))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=[keras.metrics.SparseCategoricalAccuracy()])
    shown = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: print(step, logs))
    model.fit(images, classes, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[shown])


if __name__ == "__main__":
    main()
