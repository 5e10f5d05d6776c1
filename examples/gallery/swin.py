"""Train a Swin-like Transformer: attention within windows, which every second block shifts, and merged patches.

    python examples/gallery/swin.py
    tensoropt run -n 2 examples/gallery/swin.py

Windows are cut by reshapes and transpositions, and shifted by rolls.
"""

import keras
import numpy as np
from keras import layers, ops

SIZE, WINDOW, WIDTH, HEADS, CLASSES, BATCH, STEPS = 16, 4, 16, 2, 10, 8, 3


class WindowAttention(layers.Layer):
    """Attention within windows of an image's patches, with a learned bias for each pair of places in a window."""

    def __init__(self, shift):
        super().__init__()
        self.shift = shift

    def build(self, shape):
        self.n_windows, self.width = shape[1] // WINDOW, shape[-1]
        self.to_qkv, self.project = layers.Dense(3 * self.width), layers.Dense(self.width)
        area = WINDOW * WINDOW
        self.bias = self.add_weight(shape=(HEADS, area, area), initializer="random_normal", name="bias")
        places = np.arange(shape[1])
        regions = np.where(places < shape[1] - WINDOW, 0, np.where(places < shape[1] - self.shift, 1, 2))
        grid = (3 * regions[:, None] + regions)[None, :, :, None]
        windows = np.asarray(self.windows(ops.convert_to_tensor(grid)))[0, ..., 0]
        self.mask = None if not self.shift else np.where(windows[:, None] == windows[:, :, None], 0.0, -100.0)

    def windows(self, x):
        """Images [n, h, w, c] as windows [n, windows, places, c]."""
        n, c = self.n_windows, x.shape[-1]
        x = ops.reshape(x, (-1, n, WINDOW, n, WINDOW, c))
        return ops.reshape(ops.transpose(x, (0, 1, 3, 2, 4, 5)), (-1, n * n, WINDOW * WINDOW, c))

    def call(self, x):
        n, size = self.n_windows, self.n_windows * WINDOW
        x = self.windows(ops.roll(x, (-self.shift, -self.shift), axis=(1, 2)) if self.shift else x)
        qkv = ops.reshape(self.to_qkv(x), (-1, n * n, WINDOW * WINDOW, 3, HEADS, self.width // HEADS))
        q, k, v = ops.unstack(ops.transpose(qkv, (3, 0, 1, 4, 2, 5)), axis=0)
        scores = ops.matmul(q, ops.transpose(k, (0, 1, 2, 4, 3))) / (self.width // HEADS) ** 0.5 + self.bias
        if self.mask is not None:
            scores = scores + ops.cast(self.mask, scores.dtype)[:, None]
        x = ops.transpose(ops.matmul(ops.softmax(scores), v), (0, 1, 3, 2, 4))
        x = self.project(ops.reshape(x, (-1, WINDOW * WINDOW, self.width)))
        x = ops.transpose(ops.reshape(x, (-1, n, n, WINDOW, WINDOW, self.width)), (0, 1, 3, 2, 4, 5))
        x = ops.reshape(x, (-1, size, size, self.width))
        return ops.roll(x, (self.shift, self.shift), axis=(1, 2)) if self.shift else x


def block(x, shift):
    x = x + WindowAttention(shift)(layers.LayerNormalization()(x))
    hidden = layers.Dense(2 * x.shape[-1], activation="gelu")(layers.LayerNormalization()(x))
    return x + layers.Dense(x.shape[-1])(hidden)


def create_model():
    images = keras.Input((SIZE, SIZE, 3))
    x = layers.Conv2D(WIDTH, 2, 2)(images)
    x = block(block(x, 0), WINDOW // 2)
    merged = [x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)]
    x = layers.Dense(2 * WIDTH, use_bias=False)(layers.LayerNormalization()(layers.concatenate(merged)))
    return keras.Model(images, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(block(x, 0))))


def main():
    keras.utils.set_random_seed(1)
    random = np.random.default_rng(0)
    images = random.normal(size=(BATCH * STEPS, SIZE, SIZE, 3))
    classes = random.integers(0, CLASSES, len(images))
    model = create_model()
    model.compile(keras.optimizers.AdamW(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    shown = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: print(step, logs))
    model.fit(images, classes, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[shown])


if __name__ == "__main__":
    main()
