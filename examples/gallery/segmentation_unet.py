"""Train a U-Net that says for every pixel what it belongs to.

    python examples/gallery/segmentation_unet.py
    tensoropt run -n 2 examples/gallery/segmentation_unet.py

Height and width can be sharded: ranks exchange the rows that convolutions reach over.
"""

import keras
import numpy as np
from keras import layers

SIZE, CLASSES, BATCH, STEPS = 16, 3, 8, 3


def twice(x, filters):
    for _ in range(2):
        x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)))
    return x


def create_model():
    images = keras.Input((SIZE, SIZE, 3))
    x, kept = images, []
    for filters in (8, 16):
        kept.append(twice(x, filters))
        x = layers.MaxPooling2D()(kept[-1])
    x = twice(x, 32)
    for filters, across in zip((16, 8), reversed(kept), strict=True):
        x = layers.Conv2DTranspose(filters, 2, 2)(x)
        x = twice(layers.concatenate([across, x]), filters)
    return keras.Model(images, layers.Conv2D(CLASSES, 1)(x))


def discs(n):
    """Images of discs, in two colours, and for each pixel which of them it is in."""
    random, (rows, columns) = np.random.default_rng(0), np.indices((SIZE, SIZE))
    masks = np.zeros((n, SIZE, SIZE), "int32")
    for mask in masks:
        for kind in range(1, CLASSES):
            row, column = random.integers(0, SIZE, 2)
            mask[(rows - row) ** 2 + (columns - column) ** 2 < 16] = kind
    return random.normal(size=(n, SIZE, SIZE, 3)) + masks[..., None], masks


def main():
    keras.utils.set_random_seed(1)
    images, masks = discs(BATCH * STEPS)
    model = create_model()
    metrics = ["accuracy", keras.metrics.MeanIoU(CLASSES, sparse_y_pred=False)]
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=metrics)
    shown = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: print(step, logs))
    model.fit(images, masks, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[shown])


if __name__ == "__main__":
    main()
