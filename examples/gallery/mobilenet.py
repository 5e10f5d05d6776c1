"""Train a MobileNet-like network: depthwise convolutions, inverted bottlenecks, squeeze and excitation, smoothed labels.

    python examples/gallery/mobilenet.py
    tensoropt run -n 2 examples/gallery/mobilenet.py
"""

import keras
import numpy as np
from keras import layers

SIZE, CLASSES, BATCH, STEPS = 16, 5, 16, 3


def squeeze_and_excite(x):
    channels = x.shape[-1]
    weights = layers.GlobalAveragePooling2D(keepdims=True)(x)
    weights = layers.Conv2D(channels // 4, 1, activation="relu")(weights)
    weights = layers.Conv2D(channels, 1, activation="hard_sigmoid")(weights)
    return layers.multiply([x, weights])


def bottleneck(x, filters, stride, expansion=4):
    inner = layers.Conv2D(expansion * x.shape[-1], 1, use_bias=False)(x)
    inner = layers.Activation("hard_swish")(layers.BatchNormalization(momentum=0.9)(inner))
    inner = layers.DepthwiseConv2D(3, stride, padding="same", use_bias=False)(inner)
    inner = layers.ReLU(6.0)(layers.BatchNormalization(momentum=0.9)(inner))
    inner = layers.Conv2D(filters, 1, use_bias=False)(squeeze_and_excite(inner))
    inner = layers.BatchNormalization(momentum=0.9)(inner)
    return layers.add([x, inner]) if stride == 1 and filters == x.shape[-1] else inner


def create_model():
    images = keras.Input((SIZE, SIZE, 3))
    x = layers.Conv2D(8, 3, 2, padding="same", activation="hard_swish")(images)
    for filters, stride in ((8, 1), (16, 2), (16, 1)):
        x = bottleneck(x, filters, stride)
    x = layers.SeparableConv2D(32, 3, padding="same", activation="relu6")(x)
    return keras.Model(images, layers.Dense(CLASSES, activation="softmax")(layers.GlobalMaxPooling2D()(x)))


def main():
    keras.utils.set_random_seed(1)
    random = np.random.default_rng(0)
    images = random.normal(size=(BATCH * STEPS, SIZE, SIZE, 3))
    classes = np.eye(CLASSES)[random.integers(0, CLASSES, len(images))]
    model = create_model()
    model.compile(
        keras.optimizers.RMSprop(1e-3, momentum=0.9),
        keras.losses.CategoricalCrossentropy(label_smoothing=0.1),
        metrics=["accuracy", keras.metrics.F1Score(average="macro")],
    )
    shown = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: print(step, logs))
    model.fit(images, classes, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[shown])


if __name__ == "__main__":
    main()
