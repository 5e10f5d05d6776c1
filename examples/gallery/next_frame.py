"""Train convolutional LSTMs to predict the next frame of a film in which a square moves.

    python examples/gallery/next_frame.py
    tensoropt run -n 2 examples/gallery/next_frame.py
"""

import keras
import numpy as np
from keras import layers

SIZE, FRAMES, FILTERS, BATCH, STEPS = 12, 5, 8, 8, 3


def create_model():
    films = keras.Input((FRAMES, SIZE, SIZE, 1))
    x = layers.ConvLSTM2D(FILTERS, 3, padding="same", return_sequences=True, activation="relu")(films)
    x = layers.BatchNormalization()(x)
    x = layers.ConvLSTM2D(FILTERS, 1, padding="same", return_sequences=True, activation="relu")(x)
    return keras.Model(films, layers.Conv3D(1, 3, padding="same", activation="sigmoid")(x))


def moving_squares(n):
    random = np.random.default_rng(0)
    films = np.zeros((n, FRAMES + 1, SIZE, SIZE, 1))
    for film in films:
        (row, column), (down, right) = random.integers(0, SIZE, 2), random.integers(-2, 3, 2)
        for i, frame in enumerate(film):
            rows, columns = (row + i * down + np.arange(3)) % SIZE, (column + i * right + np.arange(3)) % SIZE
            frame[np.ix_(rows, columns)] = 1
    return films[:, :-1], films[:, 1:]


def main():
    keras.utils.set_random_seed(1)
    films, following = moving_squares(BATCH * STEPS)
    model = create_model()
    model.compile("adam", "binary_crossentropy", metrics=["mae"])
    shown = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: print(step, logs))
    model.fit(films, following, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[shown])


if __name__ == "__main__":
    main()
