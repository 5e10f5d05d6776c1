"""Train a network that reads the digits of a captcha: convolutions, a recurrent layer, and the CTC loss.

    python examples/gallery/captcha_ctc.py
    tensoropt run -n 2 examples/gallery/captcha_ctc.py

Labels are shorter than what the network gives, and end in zeros.
"""

import keras
import numpy as np
from keras import layers

HEIGHT, WIDTH, DIGITS, LONGEST, BATCH, STEPS = 8, 48, 10, 4, 8, 3


def create_model():
    images = keras.Input((HEIGHT, WIDTH, 1))
    x = layers.Conv2D(8, 3, padding="same", activation="relu")(images)
    x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(16, 3, padding="same", activation="relu")(x)
    x = layers.MaxPooling2D()(x)
    x = layers.Reshape((WIDTH // 4, -1))(layers.Permute((2, 1, 3))(x))
    x = layers.Bidirectional(layers.GRU(16, return_sequences=True))(layers.Dense(16, activation="relu")(x))
    return keras.Model(images, layers.Dense(DIGITS + 1)(x))


def captchas(n):
    """Images in which each digit, of 1 to 10, is a pattern of its own, and the digits."""
    random = np.random.default_rng(0)
    patterns = random.normal(size=(DIGITS + 1, HEIGHT, WIDTH // LONGEST, 1))
    labels = random.integers(1, DIGITS + 1, (n, LONGEST))
    labels[np.arange(LONGEST) >= random.integers(2, LONGEST + 1, n)[:, None]] = 0
    images = np.concatenate([patterns[labels[:, i]] for i in range(LONGEST)], axis=2)
    return images + 0.1 * random.normal(size=images.shape), labels


def main():
    keras.utils.set_random_seed(1)
    images, labels = captchas(BATCH * STEPS)
    model = create_model()
    model.compile(keras.optimizers.Adam(1e-3), keras.losses.CTC())
    shown = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: print(step, logs))
    model.fit(images, labels, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[shown])


if __name__ == "__main__":
    main()
