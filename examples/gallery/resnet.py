"""Train a residual network with batch normalization, SGD with momentum and a learning rate that falls like a cosine.

    python examples/gallery/resnet.py
    mpirun -n 2 python examples/gallery/resnet.py

Batch statistics are those of the global batch, as on one device. The last batch is smaller than the others.
"""

import keras
import numpy as np
from keras import layers

import tensoropt

SIZE, CLASSES, BATCH, STEPS = 16, 10, 16, 3


def block(x, filters, stride):
    shortcut = x
    if stride != 1:
        shortcut = layers.BatchNormalization()(layers.Conv2D(filters, 1, stride, use_bias=False)(x))
    x = layers.Conv2D(filters, 3, stride, padding="same", use_bias=False)(x)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    return layers.ReLU()(layers.add([shortcut, layers.BatchNormalization(gamma_initializer="zeros")(x)]))


def create_model():
    images = keras.Input((SIZE, SIZE, 3))
    x = layers.Conv2D(8, 3, padding="same", use_bias=False)(images)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    for filters, stride in ((8, 1), (16, 2), (32, 2)):
        x = block(x, filters, stride)
    return keras.Model(images, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x)))


def main():
    keras.utils.set_random_seed(1)
    random = np.random.default_rng(0)
    images = random.normal(size=(BATCH * STEPS - 5, SIZE, SIZE, 3))
    classes = random.integers(0, CLASSES, len(images))
    model = create_model()
    rate = keras.optimizers.schedules.CosineDecay(0.1, decay_steps=100)
    model.compile(
        keras.optimizers.SGD(rate, momentum=0.9, nesterov=True, weight_decay=1e-4),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model = tensoropt.parallelize(model, batch_size=BATCH)  # added
    shown = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: print(step, logs))
    model.fit(images, classes, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[shown])


if __name__ == "__main__":
    main()
