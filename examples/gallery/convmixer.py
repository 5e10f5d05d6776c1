"""Train a ConvMixer: patches, then blocks of a large depthwise convolution and one over channels; mixed images and labels.

    python examples/gallery/convmixer.py
    tensoropt run -n 2 examples/gallery/convmixer.py

Images and labels are mixed in the dataset (MixUp), before the model sees them.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

SIZE, PATCH, WIDTH, BLOCKS, CLASSES, BATCH, STEPS = 16, 2, 16, 2, 5, 16, 3


def activated(x):
    return layers.BatchNormalization()(layers.Activation("gelu")(x))


def create_model():
    images = keras.Input((SIZE, SIZE, 3))
    x = activated(layers.Conv2D(WIDTH, PATCH, PATCH)(images))
    for _ in range(BLOCKS):
        x = layers.add([x, activated(layers.DepthwiseConv2D(5, padding="same")(x))])
        x = activated(layers.Conv2D(WIDTH, 1)(x))
    return keras.Model(images, layers.Dense(CLASSES, activation="softmax")(layers.GlobalAveragePooling2D()(x)))


def mixed(images, labels):
    """Each sample of a batch mixed with its neighbour, in shares that a seed draws."""
    share = tf.cast(tf.random.stateless_uniform([BATCH, 1], seed=[1, 2]), images.dtype)
    wide = share[:, :, None, None]
    other_images, other_labels = tf.roll(images, 1, axis=0), tf.roll(labels, 1, axis=0)
    return wide * images + (1 - wide) * other_images, share * labels + (1 - share) * other_labels


def main():
    keras.utils.set_random_seed(1)
    random = np.random.default_rng(0)
    images = random.normal(size=(BATCH * STEPS, SIZE, SIZE, 3))
    labels = np.eye(CLASSES)[random.integers(0, CLASSES, len(images))]
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(images), seed=1)
    dataset = dataset.batch(BATCH, drop_remainder=True).map(mixed).prefetch(2)
    model = create_model()
    model.compile(keras.optimizers.Lion(1e-4), "categorical_crossentropy", metrics=["accuracy"])
    shown = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: print(step, logs))
    model.fit(dataset, verbose=0, callbacks=[shown])


if __name__ == "__main__":
    main()
