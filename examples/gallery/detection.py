"""Train an object detector: a pyramid of features, and heads for classes and for boxes in every cell of a grid.

    python examples/gallery/detection.py
    tensoropt run -n 2 examples/gallery/detection.py

Three results: classes (a focal loss), boxes (only where an object is), and the features, which have no loss.
"""

import keras
import numpy as np
from keras import layers, ops

SIZE, GRID, CLASSES, BATCH, STEPS = 16, 4, 3, 8, 3


def head(x, channels, name, bias=0.0):
    x = layers.Conv2D(16, 3, padding="same", activation="relu")(x)
    return layers.Conv2D(channels, 3, padding="same", name=name, bias_initializer=keras.initializers.Constant(bias))(x)


def create_model():
    images = keras.Input((SIZE, SIZE, 3))
    fine = layers.Conv2D(8, 3, 2, padding="same", activation="relu")(images)
    middle = layers.Conv2D(16, 3, 2, padding="same", activation="relu")(fine)
    coarse = layers.Conv2D(16, 3, 2, padding="same", activation="relu")(middle)
    x = layers.add([layers.Conv2D(16, 1)(middle), layers.UpSampling2D()(layers.Conv2D(16, 1)(coarse))])
    classes, boxes = head(x, CLASSES, "classes", bias=-4.6), head(x, 4, "boxes")
    return keras.Model(images, [classes, boxes, x])


def focal(wanted, logits):
    """A loss of classes [n, grid, grid, classes] that is small where the answer is sure and right."""
    wanted = ops.cast(wanted, logits.dtype)
    chance = ops.sigmoid(logits)
    right = ops.where(wanted == 1, chance, 1 - chance)
    weight = ops.where(wanted == 1, 0.25, 0.75) * (1 - right) ** 2
    errors = weight * ops.binary_crossentropy(wanted, logits, from_logits=True)
    return ops.sum(errors, axis=[1, 2, 3]) / ops.maximum(ops.sum(wanted, axis=[1, 2, 3]), 1)


def of_boxes(wanted, boxes):
    """Huber's loss of boxes where there is an object, which the fifth number of ``wanted`` says."""
    is_object, errors = wanted[..., 4], ops.abs(wanted[..., :4] - boxes)
    huber = ops.sum(ops.where(errors < 1, 0.5 * errors**2, errors - 0.5), axis=-1)
    return ops.sum(is_object * huber, axis=[1, 2]) / ops.maximum(ops.sum(is_object, axis=[1, 2]), 1)


def scenes(n):
    random = np.random.default_rng(0)
    images = random.normal(size=(n, SIZE, SIZE, 3))
    kinds, is_object = random.integers(0, CLASSES, (n, GRID, GRID)), random.random((n, GRID, GRID)) < 0.2
    classes = np.eye(CLASSES)[kinds] * is_object[..., None]
    images += classes.repeat(SIZE // GRID, axis=1).repeat(SIZE // GRID, axis=2)
    boxes = np.concatenate([random.normal(size=(n, GRID, GRID, 4)), is_object[..., None]], axis=-1)
    return images, classes, boxes


def main():
    keras.utils.set_random_seed(1)
    images, classes, boxes = scenes(BATCH * STEPS)
    model = create_model()
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9, global_clipnorm=10.0), loss=[focal, of_boxes, None])
    shown = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: print(step, logs))
    wanted = [classes, boxes, np.zeros(len(images))]
    model.fit(images, wanted, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[shown])


if __name__ == "__main__":
    main()
