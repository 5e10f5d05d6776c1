"""Train a Transformer with encoder and decoder to translate: here, to say a sentence backwards.

    python examples/gallery/translation.py
    tensoropt run -n 2 examples/gallery/translation.py

Masks of both languages go through attention and into the loss, as Keras passes them on. Positions are sines.
"""

import keras
import numpy as np
from keras import layers, ops

WORDS, LENGTH, WIDTH, HEADS, BATCH, STEPS = 100, 10, 32, 4, 16, 3
START, END = 1, 2


def waves(length, width):
    angle = np.arange(length)[:, None] / 10_000 ** (np.arange(0, width, 2) / width)
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(length, width)


class Embedded(layers.Layer):
    def __init__(self):
        super().__init__()
        self.words = layers.Embedding(WORDS, WIDTH, mask_zero=True)

    def compute_mask(self, words, mask=None):
        return self.words.compute_mask(words)

    def call(self, words):
        x = self.words(words) * WIDTH**0.5
        return x + ops.cast(waves(words.shape[1], WIDTH), x.dtype)


def attended(x, other, **arguments):
    attention = layers.MultiHeadAttention(HEADS, WIDTH // HEADS)
    return layers.LayerNormalization()(layers.add([x, attention(query=x, value=other, key=other, **arguments)]))


def widened(x):
    inner = layers.Dense(WIDTH)(layers.Dense(2 * WIDTH, activation="relu")(x))
    return layers.LayerNormalization()(layers.add([x, inner]))


def create_model():
    source = keras.Input((LENGTH,), dtype="int32", name="source")
    target = keras.Input((LENGTH,), dtype="int32", name="target")
    x = Embedded()(source)
    context = widened(attended(x, x))
    x = Embedded()(target)
    x = attended(x, x, use_causal_mask=True)
    x = widened(attended(x, context))
    return keras.Model({"source": source, "target": target}, layers.Dense(WORDS, activation="softmax")(x))


def pairs(n):
    """Sentences, and the same backwards, between a sign for the start and one for the end."""
    random = np.random.default_rng(0)
    source, both = np.zeros((n, LENGTH), "int32"), np.zeros((n, LENGTH + 1), "int32")
    for each, other, length in zip(source, both, random.integers(3, LENGTH - 1, n), strict=True):
        each[:length] = random.integers(3, WORDS, length)
        other[: length + 2] = [START, *each[:length][::-1], END]
    return {"source": source, "target": both[:, :-1]}, both[:, 1:]


def main():
    keras.utils.set_random_seed(1)
    sentences, wanted = pairs(BATCH * STEPS)
    model = create_model()
    loss = keras.losses.SparseCategoricalCrossentropy(ignore_class=0)
    model.compile(keras.optimizers.Adam(1e-3, beta_2=0.98), loss, weighted_metrics=["accuracy"])
    shown = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: print(step, logs))
    model.fit(sentences, wanted, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[shown])


if __name__ == "__main__":
    main()
