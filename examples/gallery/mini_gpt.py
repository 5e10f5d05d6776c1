"""Train a small GPT on texts of several lengths, in batches of equal length (buckets).

    python examples/gallery/mini_gpt.py
    mpirun -n 2 python examples/gallery/mini_gpt.py

The model leaves the length open. The first batch is planned; other lengths have programs with the same plan.
The output uses the embedding's table (tied weights).
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

import tensoropt

WORDS, LONGEST, WIDTH, HEADS, BATCH = 200, 16, 32, 4, 8
LENGTHS = (12, 16, 8)


class Block(layers.Layer):
    """Attention to what came before, and two dense layers, each on normalized values."""

    def __init__(self):
        super().__init__()
        self.attention = layers.MultiHeadAttention(HEADS, WIDTH // HEADS)
        self.norms = layers.LayerNormalization(), layers.LayerNormalization()
        self.hidden, self.out = layers.Dense(4 * WIDTH, activation="gelu"), layers.Dense(WIDTH)

    def call(self, x):
        normal = self.norms[0](x)
        x = x + self.attention(normal, normal, use_causal_mask=True)
        return x + self.out(self.hidden(self.norms[1](x)))


class Gpt(keras.Model):
    def __init__(self):
        super().__init__()
        self.words, self.positions = layers.Embedding(WORDS, WIDTH), layers.Embedding(LONGEST, WIDTH)
        self.blocks, self.norm = [Block(), Block()], layers.LayerNormalization()

    def call(self, words):
        x = self.words(words) + self.positions(ops.arange(ops.shape(words)[1]))
        for block in self.blocks:
            x = block(x)
        return ops.matmul(self.norm(x), ops.transpose(self.words.embeddings))


def texts():
    """A batch for each length: texts that count up from a random word, and the same one word later."""
    random = np.random.default_rng(0)
    for length in LENGTHS:
        steps = random.integers(1, 4, (BATCH, length + 1)).cumsum(axis=1)
        words = (random.integers(0, WORDS, (BATCH, 1)) + steps) % WORDS
        yield words[:, :-1].astype("int32"), words[:, 1:].astype("int32")


def create_model():
    inputs = keras.Input((None,), dtype="int32")
    return keras.Model(inputs, Gpt()(inputs))


def main():
    keras.utils.set_random_seed(1)
    of_batch = tf.TensorSpec((BATCH, None), "int32")
    dataset = tf.data.Dataset.from_generator(texts, output_signature=(of_batch, of_batch))
    model = create_model()
    model.compile(keras.optimizers.AdamW(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model = tensoropt.parallelize(model, batch_size=BATCH)  # added
    shown = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: print(step, logs))
    model.fit(dataset, verbose=0, callbacks=[shown])


if __name__ == "__main__":
    main()
