"""Train a denoising diffusion model (DDPM): noise by a schedule, a U-Net that sees the time, averages of its weights.

    python examples/gallery/diffusion.py
    tensoropt run -n 2 examples/gallery/diffusion.py

Each step adds noise to images, learns to tell it, and moves a second network's weights a little towards the first's.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

SIZE, TIMES, WIDTH, BATCH, STEPS, DECAY = 8, 50, 8, 16, 3, 0.99


def residual(x, time, filters):
    shortcut = layers.Conv2D(filters, 1)(x)
    x = layers.Conv2D(filters, 3, padding="same")(ops.silu(layers.GroupNormalization(4)(x)))
    x = x + layers.Dense(filters)(time)[:, None, None]
    return shortcut + layers.Conv2D(filters, 3, padding="same")(ops.silu(layers.GroupNormalization(4)(x)))


def create_network():
    images, times = keras.Input((SIZE, SIZE, 1)), keras.Input((), dtype="int32")
    frequencies = np.exp(np.linspace(0, -np.log(10_000), WIDTH))
    angles = ops.cast(times, keras.config.floatx())[:, None] * ops.cast(frequencies, keras.config.floatx())
    time = layers.Dense(2 * WIDTH, activation="silu")(ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=1))
    above = residual(layers.Conv2D(WIDTH, 3, padding="same")(images), time, WIDTH)
    below = residual(layers.AveragePooling2D(2)(above), time, 2 * WIDTH)
    x = residual(layers.concatenate([above, layers.UpSampling2D()(below)]), time, WIDTH)
    return keras.Model([images, times], layers.Conv2D(1, 3, padding="same", kernel_initializer="zeros")(x))


class Diffusion(keras.Model):
    def __init__(self):
        super().__init__()
        self.network, self.averaged = create_network(), create_network()
        self.averaged.set_weights(self.network.get_weights())
        self.averaged.trainable = False
        self.kept = np.cumprod(1 - np.linspace(1e-4, 0.2, TIMES))
        self.seeds = keras.random.SeedGenerator(1)

    def train_step(self, images):
        n = tf.shape(images)[0]
        times = keras.random.randint((n,), 0, TIMES, seed=self.seeds)
        noise = keras.random.normal(tf.shape(images), seed=self.seeds)
        kept = tf.gather(tf.cast(self.kept, images.dtype), times)[:, None, None, None]
        noisy = tf.sqrt(kept) * images + tf.sqrt(1 - kept) * noise
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((noise - self.network([noisy, times], training=True)) ** 2)
        weights = self.network.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        for weight, average in zip(self.network.weights, self.averaged.weights, strict=True):
            average.assign(DECAY * average + (1 - DECAY) * weight)
        return {"loss": loss}


def main():
    keras.utils.set_random_seed(1)
    images = np.tanh(np.random.default_rng(0).normal(size=(BATCH * STEPS, SIZE, SIZE, 1)).cumsum(axis=2))
    model = Diffusion()
    model.compile(keras.optimizers.AdamW(2e-4, clipnorm=1.0))
    shown = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: print(step, logs))
    model.fit(images, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[shown])


if __name__ == "__main__":
    main()
