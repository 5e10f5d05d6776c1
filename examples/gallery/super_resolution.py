"""Train a network that makes images larger: channels become pixels (depth to space).

    python examples/gallery/super_resolution.py
    tensoropt run -n 2 examples/gallery/super_resolution.py

The loss is of the script: pixels, and how they differ from their neighbours. A metric is the ratio of signal to noise.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

SIZE, FACTOR, BATCH, STEPS = 8, 2, 8, 3


class PixelShuffle(layers.Layer):
    def call(self, x):
        return tf.nn.depth_to_space(x, FACTOR)


def create_model():
    small = keras.Input((SIZE, SIZE, 1))
    x = layers.Conv2D(16, 5, padding="same", activation="relu", kernel_initializer="orthogonal")(small)
    for _ in range(2):
        x = layers.add([x, layers.Conv2D(16, 3, padding="same", activation="relu")(x)])
    x = PixelShuffle()(layers.Conv2D(FACTOR**2, 3, padding="same")(x))
    larger = layers.Resizing(SIZE * FACTOR, SIZE * FACTOR, interpolation="bilinear")(small)
    return keras.Model(small, layers.add([larger, x]))


def of_pixels_and_edges(wanted, given):
    rows, columns = tf.image.image_gradients(wanted - given)
    return tf.reduce_mean(tf.abs(wanted - given), [1, 2, 3]) + 0.1 * tf.reduce_mean(rows**2 + columns**2, [1, 2, 3])


def signal_to_noise(wanted, given):
    return -10 * keras.ops.log10(tf.reduce_mean((wanted - given) ** 2, [1, 2, 3]))


def main():
    keras.utils.set_random_seed(1)
    large = np.random.default_rng(0).random((BATCH * STEPS, SIZE * FACTOR, SIZE * FACTOR, 1))
    small = large.reshape(-1, SIZE, FACTOR, SIZE, FACTOR, 1).mean(axis=(2, 4))
    model = create_model()
    model.compile(keras.optimizers.Adam(1e-3), of_pixels_and_edges, metrics=[signal_to_noise])
    shown = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: print(step, logs))
    model.fit(small, large, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[shown])


if __name__ == "__main__":
    main()
