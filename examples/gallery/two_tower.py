"""Train two towers, of users and of films, to find films for users: other films of the batch are what wasn't seen.

    python examples/gallery/two_tower.py
    tensoropt run -n 2 examples/gallery/two_tower.py

Frequent films are held back by a correction of their scores. Adagrad changes the rows that a batch has, on their devices.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

WIDTH, BATCH, STEPS = 16, 16, 3
USERS, FILMS = [f"user {i}" for i in range(1000)], [f"film {i}" for i in range(400)]


def tower(names):
    table = layers.Embedding(len(names) + 1, WIDTH)
    return keras.Sequential([table, layers.Dense(32, activation="relu"), layers.Dense(WIDTH)])


class Retrieval(keras.Model):
    def __init__(self):
        super().__init__()
        self.user_ids, self.film_ids = layers.StringLookup(vocabulary=USERS), layers.StringLookup(vocabulary=FILMS)
        self.users, self.films = tower(USERS), tower(FILMS)

    def call(self, inputs):
        user, film = self.user_ids(inputs["user"]), self.film_ids(inputs["film"])
        scores = ops.matmul(self.users(user), ops.transpose(self.films(film)))
        scores = scores - ops.log(ops.cast(inputs["frequency"], scores.dtype))[None]
        is_same = ops.equal(film[:, None], film[None])
        itself = ops.eye(ops.shape(scores)[0], dtype="bool")
        return ops.where(ops.logical_and(is_same, ops.logical_not(itself)), -1e9, scores)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        seen = ops.arange(ops.shape(y_pred)[0])
        return ops.mean(keras.losses.sparse_categorical_crossentropy(seen, y_pred, from_logits=True))


def views(n):
    """Users and what they saw, of which some films are seen often."""
    random = np.random.default_rng(0)
    films = (random.zipf(1.3, n) - 1) % len(FILMS)
    frequency = np.bincount(films)[films] / n
    return {"user": random.choice(USERS, n), "film": np.take(FILMS, films), "frequency": frequency}


def main():
    keras.utils.set_random_seed(1)
    dataset = tf.data.Dataset.from_tensor_slices(views(BATCH * STEPS)).batch(BATCH)
    model = Retrieval()
    model.compile(keras.optimizers.Adagrad(0.1))
    shown = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: print(step, logs))
    model.fit(dataset, verbose=0, callbacks=[shown])


if __name__ == "__main__":
    main()
