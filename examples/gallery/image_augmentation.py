"""Train a small CNN on images that layers of the model flip, turn, move and brighten at random.

    python examples/gallery/image_augmentation.py
    tensoropt run -n 2 examples/gallery/image_augmentation.py
"""

import keras
import numpy as np
from keras import layers

SIZE, CLASSES, BATCH, STEPS = 16, 4, 16, 3


def create_model():
    return keras.Sequential(
        [
            keras.Input((SIZE, SIZE, 3)),
            layers.Rescaling(1 / 255),
            layers.RandomFlip("horizontal", seed=1),
            layers.RandomRotation(0.05, seed=2),
            layers.RandomTranslation(0.1, 0.1, seed=3),
            layers.RandomZoom(0.1, seed=4),
            layers.RandomContrast(0.2, seed=5),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dropout(0.2, seed=6),
            layers.Dense(CLASSES),
        ]
    )


def shapes(n_images):
    """Noisy images of bars, by their direction and colour."""
    random = np.random.default_rng(0)
    images, classes = random.uniform(0, 80, (n_images, SIZE, SIZE, 3)), random.integers(0, CLASSES, n_images)
    for image, kind, at in zip(images, classes, random.integers(3, SIZE - 3, n_images), strict=True):
        bar = image[at] if kind % 2 else image[:, at]
        bar[:, kind // 2] += 170
    return images, classes


def main():
    keras.utils.set_random_seed(1)
    images, classes = shapes(BATCH * STEPS)
    model = create_model()
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    shown = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: print(step, logs))
    model.fit(images, classes, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[shown])


if __name__ == "__main__":
    main()
