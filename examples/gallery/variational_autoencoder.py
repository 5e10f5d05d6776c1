"""Train a variational autoencoder with a training step of its own.

    python examples/gallery/variational_autoencoder.py
    tensoropt run -n 2 examples/gallery/variational_autoencoder.py

The step draws noise, and has two losses that metrics follow.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

SIZE, LATENT, BATCH, STEPS = 12, 2, 16, 3


class Sampling(layers.Layer):
    """A normal sample of each mean and logarithm of a variance."""

    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, inputs):
        mean, log_variance = inputs
        return mean + ops.exp(0.5 * log_variance) * keras.random.normal(ops.shape(mean), seed=self.seeds)


def create_encoder():
    images = keras.Input((SIZE, SIZE, 1))
    x = layers.Conv2D(8, 3, 2, padding="same", activation="relu")(images)
    x = layers.Conv2D(16, 3, 2, padding="same", activation="relu")(x)
    x = layers.Dense(16, activation="relu")(layers.Flatten()(x))
    mean, log_variance = layers.Dense(LATENT)(x), layers.Dense(LATENT)(x)
    return keras.Model(images, [mean, log_variance, Sampling()([mean, log_variance])])


def create_decoder():
    code = keras.Input((LATENT,))
    x = layers.Reshape((SIZE // 4, SIZE // 4, 16))(layers.Dense(SIZE * SIZE, activation="relu")(code))
    x = layers.Conv2DTranspose(16, 3, 2, padding="same", activation="relu")(x)
    return keras.Model(code, layers.Conv2DTranspose(1, 3, 2, padding="same", activation="sigmoid")(x))


class Autoencoder(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = create_encoder(), create_decoder()
        self.trackers = [keras.metrics.Mean(name=name) for name in ("loss", "reconstruction", "divergence")]

    @property
    def metrics(self):
        return self.trackers

    def train_step(self, images):
        with tf.GradientTape() as tape:
            mean, log_variance, code = self.encoder(images, training=True)
            errors = keras.losses.binary_crossentropy(images, self.decoder(code, training=True))
            reconstruction = ops.mean(ops.sum(errors, axis=(1, 2)))
            divergence = -0.5 * ops.mean(ops.sum(1 + log_variance - mean**2 - ops.exp(log_variance), axis=1))
            loss = reconstruction + divergence
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        for tracker, value in zip(self.trackers, (loss, reconstruction, divergence), strict=True):
            tracker.update_state(value)
        return {tracker.name: tracker.result() for tracker in self.trackers}


def main():
    keras.utils.set_random_seed(1)
    images = np.random.default_rng(0).random((BATCH * STEPS, SIZE, SIZE, 1))
    model = Autoencoder()
    model.compile(keras.optimizers.Adam(1e-3))
    shown = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: print(step, logs))
    model.fit(images, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[shown])


if __name__ == "__main__":
    main()
