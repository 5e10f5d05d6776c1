"""Train twin networks that tell whether two images show the same thing, by a contrastive loss.

    python examples/gallery/siamese.py
    tensoropt run -n 2 examples/gallery/siamese.py

Both images go through the same layers. The loss is a function of the script.
"""

import keras
import numpy as np
from keras import layers, ops

SIZE, CLASSES, BATCH, STEPS, MARGIN = 12, 5, 16, 3, 1.0


def create_model():
    twin = keras.Sequential(
        [
            keras.Input((SIZE, SIZE)),
            layers.Reshape((SIZE, SIZE, 1)),
            layers.BatchNormalization(),
            layers.Conv2D(4, 5, activation="tanh"),
            layers.AveragePooling2D(2),
            layers.Flatten(),
            layers.Dense(10, activation="tanh"),
        ]
    )
    one, other = keras.Input((SIZE, SIZE), name="one"), keras.Input((SIZE, SIZE), name="other")
    squared = ops.sum((twin(one) - twin(other)) ** 2, axis=1, keepdims=True)
    distance = ops.sqrt(ops.maximum(squared, keras.config.epsilon()))
    return keras.Model([one, other], layers.Dense(1, activation="sigmoid")(layers.BatchNormalization()(distance)))


def contrastive(differ, distance):
    differ = ops.cast(differ, distance.dtype)
    return ops.mean((1 - differ) * distance**2 + differ * ops.maximum(MARGIN - distance, 0) ** 2, axis=-1)


def pairs(n):
    random = np.random.default_rng(0)
    patterns, kinds = random.normal(size=(CLASSES, SIZE, SIZE)), random.integers(0, CLASSES, (2, n))
    images = patterns[kinds] + 0.5 * random.normal(size=(2, n, SIZE, SIZE))
    return [images[0], images[1]], (kinds[0] != kinds[1]).astype("int32")


def main():
    keras.utils.set_random_seed(1)
    images, differ = pairs(BATCH * STEPS)
    model = create_model()
    model.compile(keras.optimizers.RMSprop(1e-3), contrastive, metrics=["accuracy"])
    shown = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: print(step, logs))
    model.fit(images, differ, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[shown])


if __name__ == "__main__":
    main()
