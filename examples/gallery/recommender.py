"""Train a deep learning recommender (DLRM) on clicks shaped like Criteo's: 13 numbers and some categories for each sample.

    python examples/gallery/recommender.py
    mpirun -n 2 python examples/gallery/recommender.py

The clicks are synthetic. The tables hold nearly all of the parameters. With --memory, the limit of a device, the search
splits those that don't fit. Keras's Adagrad changes only the rows that a batch has, each on the device that holds it.
"""

import argparse

import keras
import numpy as np
from keras import layers, ops

import tensoropt

NUMBERS, WIDTH, BATCH = 13, 16, 128
SIZES = (200_000, 60_000, 9_000, 800, 60, 4)
"""The number of categories of each kind; Criteo has 26 kinds, of up to tens of millions."""


def create_model():
    keras.utils.set_random_seed(1)
    numbers = keras.Input((NUMBERS,), name="numbers")
    kinds = [keras.Input((), dtype="int32", name=f"kind{i}") for i in range(len(SIZES))]
    below = layers.Dense(WIDTH, activation="relu")(layers.Dense(64, activation="relu")(numbers))
    found = [layers.Embedding(size, WIDTH)(kind) for size, kind in zip(SIZES, kinds, strict=True)]
    vectors = ops.stack([below, *found], axis=1)
    count = len(SIZES) + 1
    products = ops.reshape(ops.matmul(vectors, ops.transpose(vectors, (0, 2, 1))), (-1, count * count))
    pairs = ops.take(products, [i * count + j for i in range(count) for j in range(i)], axis=1)
    above = layers.Dense(64, activation="relu")(ops.concatenate([below, pairs], axis=1))
    return keras.Model([numbers, *kinds], layers.Dense(1)(above), name="dlrm")


def clicks(n_samples):
    """Samples in which few categories are frequent, and whether each was clicked."""
    random = np.random.default_rng(0)
    numbers = random.lognormal(size=(n_samples, NUMBERS)).astype("float32")
    kinds = [((random.zipf(1.2, n_samples) - 1) % size).astype("int32") for size in SIZES]
    score = np.log(numbers).sum(axis=1) + sum(np.sin(kind) for kind in kinds)
    return [np.log1p(numbers), *kinds], (score > random.normal(size=n_samples)).astype("float32")[:, None]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3, help="training steps (default %(default)s)")
    parser.add_argument("--memory", metavar="SIZE", help="the limit of a device, such as 30MB; default: what it has")
    parser.add_argument("--cluster", metavar="NAME", help="plan for this hardware, such as v100-1x2, instead of measuring")
    arguments = parser.parse_args()
    samples, clicked = clicks(BATCH * arguments.steps)
    trainer = tensoropt.parallelize(
        create_model(),
        keras.optimizers.Adagrad(0.05),
        keras.losses.BinaryCrossentropy(from_logits=True),
        batch_size=BATCH,
        memory=arguments.memory,
        cluster=arguments.cluster,
    )
    history = trainer.fit(samples, clicked, batch_size=BATCH, shuffle=False, verbose=0)
    tables = [op for op in trainer.plan.operators if op.type == "Variable" and "embedding" in op.name]
    held = trainer.ranks.execution.statistics(0)["parameter_bytes_per_rank"]
    if trainer.ranks.rank == 0:
        print(trainer.plan.summary())
        print("tables split:", sum(bool(op.config.used_axes) for op in tables), "of", len(tables))
        print("parameters per rank:", ", ".join(f"{n_bytes / 1e6:.1f} MB" for n_bytes in held))
        print(f"loss {history.history['loss'][0]:.6f}")


if __name__ == "__main__":
    main()
