"""Train on raw text: a layer of the model cuts it into words and looks them up.

    python examples/gallery/raw_text.py
    tensoropt run -n 2 examples/gallery/raw_text.py
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

LENGTH, BATCH, STEPS = 8, 16, 3
GOOD, BAD, OTHER = ("fine", "lovely", "great"), ("dull", "awful", "weak"), ("a", "film", "and", "the", "plot", "cast")


def reviews(n):
    random = np.random.default_rng(0)
    for _ in range(n):
        is_good = int(random.integers(0, 2))
        words = [*random.choice(OTHER, random.integers(2, 6)), *random.choice(GOOD if is_good else BAD, 2)]
        yield " ".join(random.permutation(words)).capitalize() + "!", is_good


def create_model(texts):
    words = layers.TextVectorization(max_tokens=50, output_sequence_length=LENGTH)
    words.adapt(texts)
    return keras.Sequential(
        [
            keras.Input((), dtype="string"),
            words,
            layers.Embedding(words.vocabulary_size(), 16),
            layers.Conv1D(16, 3, activation="relu"),
            layers.GlobalMaxPooling1D(),
            layers.Dense(1),
        ]
    )


def main():
    keras.utils.set_random_seed(1)
    texts, labels = zip(*reviews(BATCH * STEPS), strict=True)
    dataset = tf.data.Dataset.from_tensor_slices((list(texts), list(labels))).shuffle(100, seed=1).batch(BATCH)
    model = create_model(list(texts))
    model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True), metrics=["accuracy"])
    shown = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: print(step, logs))
    model.fit(dataset, verbose=0, callbacks=[shown])


if __name__ == "__main__":
    main()
