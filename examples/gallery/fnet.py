"""Train an FNet, which mixes words by Fourier transforms instead of attention, to fill in hidden words.

    python examples/gallery/fnet.py
    tensoropt run -n 2 examples/gallery/fnet.py

Only hidden words count in the loss, by sample weights.
"""

import keras
import numpy as np
from keras import layers, ops

WORDS, LENGTH, WIDTH, BATCH, STEPS, HIDDEN = 100, 12, 16, 16, 3, 0


class Fourier(layers.Layer):
    """The real part of a Fourier transform over words and width."""

    def call(self, x):
        return ops.fft2((x, ops.zeros_like(x)))[0]


def create_model():
    words = keras.Input((LENGTH,), dtype="int32")
    positions = layers.Embedding(LENGTH, WIDTH)(ops.arange(LENGTH))
    x = layers.LayerNormalization()(layers.Embedding(WORDS, WIDTH)(words) + positions)
    for _ in range(2):
        x = layers.LayerNormalization()(x + Fourier()(x))
        x = layers.LayerNormalization()(x + layers.Dense(WIDTH)(layers.Dense(4 * WIDTH, activation="gelu")(x)))
    return keras.Model(words, layers.Dense(WORDS)(x))


def main():
    keras.utils.set_random_seed(1)
    random = np.random.default_rng(0)
    words = (random.integers(1, WORDS, (BATCH * STEPS, 1)) + np.arange(LENGTH)) % WORDS
    is_hidden = random.random(words.shape) < 0.3
    model = create_model()
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), weighted_metrics=["accuracy"])
    shown = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: print(step, logs))
    seen = np.where(is_hidden, HIDDEN, words)
    model.fit(seen, words, BATCH, sample_weight=is_hidden, shuffle=False, verbose=0, callbacks=[shown])


if __name__ == "__main__":
    main()
