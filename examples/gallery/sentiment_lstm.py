"""Train bidirectional LSTMs on sentences of different lengths; classes have weights.

    python examples/gallery/sentiment_lstm.py
    tensoropt run -n 2 examples/gallery/sentiment_lstm.py

A recurrent layer is a loop in TensorFlow's graph. A plan shards what is in the loop.
"""

import keras
import numpy as np
from keras import layers

WORDS, LENGTH, WIDTH, BATCH, STEPS = 300, 10, 16, 16, 3


def create_model():
    return keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            layers.Embedding(WORDS, WIDTH, mask_zero=True),
            layers.SpatialDropout1D(0.1, seed=1),
            layers.Bidirectional(layers.LSTM(WIDTH, return_sequences=True)),
            layers.Bidirectional(layers.LSTM(WIDTH, recurrent_regularizer="l2"), merge_mode="sum"),
            layers.Dense(1),
        ]
    )


def reviews(n):
    random = np.random.default_rng(0)
    words = random.integers(1, WORDS, (n, LENGTH))
    words[np.arange(LENGTH) >= random.integers(3, LENGTH + 1, n)[:, None]] = 0
    return words, (words[:, :1] > WORDS // 3).astype("int32")


def main():
    keras.utils.set_random_seed(1)
    words, is_positive = reviews(BATCH * STEPS)
    model = create_model()
    loss = keras.losses.BinaryFocalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Nadam(1e-2, clipvalue=0.5), loss, metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)])
    shown = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: print(step, logs))
    weights = {0: 2.0, 1: 0.5}
    model.fit(words, is_positive, BATCH, class_weight=weights, shuffle=False, verbose=0, callbacks=[shown])


if __name__ == "__main__":
    main()
