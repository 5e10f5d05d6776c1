"""Train a Keras model on handwritten digits, across as many devices as there are.

    mpirun -n 2 python examples/train_keras.py

The model is an ordinary Keras model, a small residual network with normalisation and dropout. It trains as with Keras. No
line says how anything is split.
"""

import argparse
import json
import os

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import tensoropt


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8, help="times to go through the data (default %(default)s)")
    parser.add_argument("--batch", type=int, default=128, help="samples per step (default %(default)s)")
    parser.add_argument("--dropout", type=float, default=0.2, help="rate (default %(default)s)")
    parser.add_argument(
        "--dtype", choices=["float32", "float64"], default="float32", help="of the numbers (default %(default)s)"
    )
    parser.add_argument("--cluster", metavar="NAME", help="plan for this hardware, such as v100-1x2, instead of measuring")
    parser.add_argument("--json", metavar="FILE", help="write the training log")
    parser.add_argument("--checkpoint", metavar="PREFIX", help="go on from this checkpoint if it is there; save it")
    arguments = parser.parse_args()
    if arguments.epochs < 1 or arguments.batch < 1:
        parser.error(f"--epochs and --batch must be at least 1, got {arguments.epochs} and {arguments.batch}")
    return arguments


def create_model(dropout):
    def normalised(x, filters, strides=1):
        x = keras.layers.Conv2D(filters, 3, strides, padding="same", use_bias=False)(x)
        return keras.layers.BatchNormalization(momentum=0.9)(x)

    keras.utils.set_random_seed(1)
    images = keras.Input((8, 8, 1), name="images")
    x = keras.layers.ReLU()(normalised(images, 16))
    for filters, strides in ((16, 1), (32, 2), (64, 2)):
        shortcut = normalised(x, filters, strides) if strides > 1 else x
        inside = keras.layers.ReLU()(normalised(x, filters, strides))
        x = keras.layers.ReLU()(keras.layers.Add()([shortcut, normalised(inside, filters)]))
    x = keras.layers.Dropout(dropout)(keras.layers.GlobalAveragePooling2D()(x))
    return keras.Model(images, keras.layers.Dense(10)(x), name="digits")


def main():
    arguments = parse_arguments()
    keras.config.set_floatx(arguments.dtype)
    keras.config.set_dtype_policy(arguments.dtype)
    digits, classes = load_digits(return_X_y=True)
    pixels = (digits / 16).reshape(-1, 8, 8, 1).astype(arguments.dtype)
    train_x, test_x, train_y, test_y = train_test_split(pixels, classes, test_size=0.2, random_state=0)
    train = tf.data.Dataset.from_tensor_slices((train_x, train_y)).shuffle(len(train_x), seed=1).batch(arguments.batch)
    test = tf.data.Dataset.from_tensor_slices((test_x, test_y)).batch(arguments.batch)

    model = create_model(arguments.dropout)
    trainer = tensoropt.parallelize(
        model,
        optimizer=keras.optimizers.AdamW(3e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        batch_size=arguments.batch,
        cluster=arguments.cluster,
    )
    if trainer.ranks.rank == 0:
        print(trainer.plan.summary())
    if arguments.checkpoint and os.path.exists(f"{arguments.checkpoint}.index"):
        trainer.load(arguments.checkpoint)
    history = trainer.fit(train, epochs=arguments.epochs, validation_data=test, verbose=2)
    if arguments.checkpoint:
        trainer.save(arguments.checkpoint)

    trainer.export_to(model)
    if trainer.ranks.rank == 0:
        right = np.argmax(model.predict(test_x, verbose=0), -1) == test_y
        print(f"test accuracy: {right.mean():.4f}")
        if arguments.json:
            with open(arguments.json, "w") as file:
                log = {"losses": history.history["loss"], "val_losses": history.history["val_loss"]}
                json.dump({**log, "split_operators": trainer.plan.n_split_operators, "plan": trainer.plan.summary()}, file)


if __name__ == "__main__":
    main()
