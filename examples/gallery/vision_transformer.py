"""Train a vision Transformer: patches, a class token, learned positions, AdamW with a warm-up and clipped gradients.

    python examples/gallery/vision_transformer.py
    tensoropt run -n 2 examples/gallery/vision_transformer.py
"""

import keras
import numpy as np
from keras import layers, ops

SIZE, PATCH, WIDTH, HEADS, BLOCKS, CLASSES, BATCH, STEPS = 16, 4, 32, 4, 2, 10, 16, 3


class ClassTokenAndPositions(layers.Layer):
    """Puts a learned token in front of the patches, and adds a learned vector to each."""

    def build(self, shape):
        self.token = self.add_weight(shape=(1, 1, shape[-1]), initializer="zeros", name="token")
        self.positions = self.add_weight(shape=(1, shape[1] + 1, shape[-1]), initializer="random_normal", name="positions")

    def call(self, patches):
        token = ops.broadcast_to(self.token, (ops.shape(patches)[0], 1, patches.shape[-1]))
        return ops.concatenate([token, patches], axis=1) + self.positions


def block(x):
    normal = layers.LayerNormalization(epsilon=1e-6)(x)
    x = x + layers.MultiHeadAttention(HEADS, WIDTH // HEADS, dropout=0.1, seed=2)(normal, normal)
    hidden = layers.Dense(2 * WIDTH, activation="gelu")(layers.LayerNormalization(epsilon=1e-6)(x))
    return x + layers.Dropout(0.1, seed=3)(layers.Dense(WIDTH)(hidden))


def create_model():
    images = keras.Input((SIZE, SIZE, 3))
    x = layers.Conv2D(WIDTH, PATCH, PATCH)(images)
    x = ClassTokenAndPositions()(layers.Reshape((-1, WIDTH))(x))
    for _ in range(BLOCKS):
        x = block(x)
    return keras.Model(images, layers.Dense(CLASSES)(layers.LayerNormalization(epsilon=1e-6)(x)[:, 0]))


def main():
    keras.utils.set_random_seed(1)
    random = np.random.default_rng(0)
    images = random.normal(size=(BATCH * STEPS, SIZE, SIZE, 3))
    classes = random.integers(0, CLASSES, len(images))
    model = create_model()
    rate = keras.optimizers.schedules.CosineDecay(0.0, decay_steps=100, warmup_target=1e-3, warmup_steps=10)
    optimizer = keras.optimizers.AdamW(rate, weight_decay=0.05, global_clipnorm=1.0)
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta", "token", "positions"])
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    shown = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: print(step, logs))
    model.fit(images, classes, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[shown])


if __name__ == "__main__":
    main()
