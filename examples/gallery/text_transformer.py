"""Train a Transformer that classifies sentences of different lengths, padded by zeros that a mask hides.

    python examples/gallery/text_transformer.py
    tensoropt run -n 2 examples/gallery/text_transformer.py
"""

import keras
import numpy as np
from keras import layers, ops

WORDS, LENGTH, WIDTH, HEADS, BATCH, STEPS = 500, 12, 32, 2, 16, 3


class WordsAndPositions(layers.Layer):
    """The sum of a word's vector and of its position's; tells later layers which words are padding."""

    def __init__(self):
        super().__init__()
        self.words = layers.Embedding(WORDS, WIDTH, mask_zero=True)
        self.positions = layers.Embedding(LENGTH, WIDTH)

    def compute_mask(self, words, mask=None):
        return self.words.compute_mask(words)

    def call(self, words):
        return self.words(words) + self.positions(ops.arange(LENGTH))


class Block(layers.Layer):
    """Attention, which sees no padding, and two dense layers."""

    def __init__(self):
        super().__init__()
        self.supports_masking = True
        self.attention = layers.MultiHeadAttention(HEADS, WIDTH // HEADS)
        self.hidden, self.out = layers.Dense(2 * WIDTH, activation="relu"), layers.Dense(WIDTH)
        self.norms = [layers.LayerNormalization(), layers.LayerNormalization()]
        self.dropout = layers.Dropout(0.1, seed=1)

    def call(self, x, training=None):
        x = self.norms[0](x + self.dropout(self.attention(x, x), training=training))
        return self.norms[1](x + self.dropout(self.out(self.hidden(x)), training=training))


def create_model():
    words = keras.Input((LENGTH,), dtype="int32")
    x = layers.GlobalAveragePooling1D()(Block()(WordsAndPositions()(words)))
    return keras.Model(words, layers.Dense(1, activation="sigmoid")(layers.Dense(16, activation="relu")(x)))


def sentences(n):
    """Random words, and whether most of them are of the first half of the dictionary."""
    random = np.random.default_rng(0)
    words = random.integers(1, WORDS, (n, LENGTH))
    words[np.arange(LENGTH) >= random.integers(4, LENGTH + 1, n)[:, None]] = 0
    return words, ((words > 0) & (words < WORDS // 2)).sum(axis=1) > (words > 0).sum(axis=1) / 2


def main():
    keras.utils.set_random_seed(1)
    words, labels = sentences(BATCH * STEPS)
    model = create_model()
    model.compile("adam", "binary_crossentropy", metrics=["accuracy", keras.metrics.AUC()])
    shown = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: print(step, logs))
    model.fit(words, labels, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[shown])


if __name__ == "__main__":
    main()
