"""Train by a loop of one's own: the step takes gradients, clips them, applies them and updates a metric.

    python examples/gallery/custom_loop.py
    tensoropt run -n 2 examples/gallery/custom_loop.py

The step runs on all ranks, since it is a `tf.function` that takes gradients of a model.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

FEATURES, CLASSES, BATCH, STEPS = 20, 4, 16, 3


def create_model():
    samples = keras.Input((FEATURES,))
    x = layers.Dropout(0.1, seed=1)(layers.Dense(64, activation="selu", kernel_initializer="lecun_normal")(samples))
    return keras.Model(samples, layers.Dense(CLASSES)(layers.BatchNormalization()(x)))


def main():
    keras.utils.set_random_seed(1)
    random = np.random.default_rng(0)
    x, y = random.normal(size=(BATCH * STEPS, FEATURES)), random.integers(0, CLASSES, BATCH * STEPS)
    dataset = tf.data.Dataset.from_tensor_slices((x.astype(keras.config.floatx()), y)).batch(BATCH)
    model, optimizer = create_model(), keras.optimizers.Adam(1e-2)
    loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    accuracy = keras.metrics.SparseCategoricalAccuracy()

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = loss_function(y, logits)
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients, norm = tf.clip_by_global_norm(gradients, 1.0)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        accuracy.update_state(y, logits)
        return loss, norm

    for number, (x, y) in enumerate(dataset):
        loss, norm = step(x, y)
        print(number, {"loss": float(loss), "norm": float(norm), "accuracy": float(accuracy.result())})


if __name__ == "__main__":
    main()
