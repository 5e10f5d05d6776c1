"""Train a switch Transformer: a router sends each word to one of several experts, of limited capacity.

    python examples/gallery/mixture_of_experts.py
    tensoropt run -n 2 examples/gallery/mixture_of_experts.py

The experts' weights are one variable, so that a plan may split them among devices. A loss of the layer keeps the load even.
"""

import keras
import numpy as np
from keras import layers, ops

WORDS, LENGTH, WIDTH, EXPERTS, CLASSES, BATCH, STEPS = 200, 8, 16, 4, 3, 8, 3
CAPACITY = BATCH * LENGTH // EXPERTS


class Experts(layers.Layer):
    """Dense layers of which each word uses one; what an expert has no room for is passed over."""

    def build(self, shape):
        self.router = layers.Dense(EXPERTS)
        self.wider = self.add_weight(shape=(EXPERTS, WIDTH, 2 * WIDTH), name="wider")
        self.narrower = self.add_weight(shape=(EXPERTS, 2 * WIDTH, WIDTH), name="narrower")

    def call(self, x):
        words = ops.reshape(x, (-1, WIDTH))
        shares = ops.softmax(self.router(words))
        chosen = ops.one_hot(ops.argmax(shares, axis=-1), EXPERTS, dtype=shares.dtype)
        self.add_loss(0.01 * EXPERTS * ops.sum(ops.mean(chosen, axis=0) * ops.mean(shares, axis=0)))
        place = ops.sum((ops.cumsum(chosen, axis=0) - 1) * chosen, axis=-1)
        has_room = chosen * ops.cast(place < CAPACITY, chosen.dtype)[:, None]
        sent = has_room[:, :, None] * ops.one_hot(ops.cast(place, "int32"), CAPACITY, dtype=chosen.dtype)[:, None]
        inputs = ops.einsum("nec,nd->ecd", sent, words)
        hidden = ops.relu(ops.einsum("ecd,edh->ech", inputs, self.wider))
        results = ops.einsum("ech,ehd->ecd", hidden, self.narrower)
        joined = ops.einsum("nec,ecd->nd", sent * ops.max(shares, axis=-1)[:, None, None], results)
        return ops.reshape(joined, ops.shape(x))


def create_model():
    words = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(WORDS, WIDTH)(words)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, WIDTH // 2)(x, x))
    x = layers.LayerNormalization()(x + Experts()(x))
    return keras.Model(words, layers.Dense(CLASSES)(layers.GlobalAveragePooling1D()(x)))


def main():
    keras.utils.set_random_seed(1)
    random = np.random.default_rng(0)
    words = random.integers(0, WORDS, (BATCH * STEPS, LENGTH))
    model = create_model()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adafactor(1e-2), loss, metrics=["accuracy"])
    shown = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: print(step, logs))
    model.fit(words, words.sum(axis=1) % CLASSES, BATCH, shuffle=False, verbose=0, callbacks=[shown])


if __name__ == "__main__":
    main()
