"""Train a wide and deep network on a table with columns of text and of numbers; the model looks texts up itself.

    python examples/gallery/wide_and_deep.py
    tensoropt run -n 2 examples/gallery/wide_and_deep.py

What has no gradient (lookup tables, crossed columns) runs before each step, on each rank for its share of the batch.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

CITIES, JOBS, NUMBERS, BATCH, STEPS = ("oslo", "rome", "lima", "cairo"), ("cook", "nurse", "clerk"), 3, 16, 3


def create_model():
    city = keras.Input((1,), dtype="string", name="city")
    job = keras.Input((1,), dtype="string", name="job")
    numbers = keras.Input((NUMBERS,), name="numbers")
    wide = [
        layers.StringLookup(vocabulary=list(CITIES), output_mode="one_hot")(city),
        layers.StringLookup(vocabulary=list(JOBS), output_mode="one_hot")(job),
        layers.HashedCrossing(16, output_mode="one_hot")((city, job)),
    ]
    ids = [layers.StringLookup(vocabulary=list(CITIES))(city), layers.StringLookup(vocabulary=list(JOBS))(job)]
    embedded = [layers.Flatten()(layers.Embedding(8, 6)(each)) for each in ids]
    deep = layers.concatenate([numbers, *embedded])
    for width in (32, 16):
        deep = layers.Dropout(0.1, seed=width)(layers.Dense(width, activation="relu")(deep))
    together = layers.concatenate([*wide, deep])
    return keras.Model([city, job, numbers], layers.Dense(1, activation="sigmoid")(together))


def people(n):
    random = np.random.default_rng(0)
    city, job = random.choice([*CITIES, "elsewhere"], (n, 1)), random.choice(JOBS, (n, 1))
    numbers = random.normal(size=(n, NUMBERS))
    return {"city": city, "job": job, "numbers": numbers}, (city == "rome") ^ (numbers[:, :1] > 0.5)


def main():
    keras.utils.set_random_seed(1)
    dataset = tf.data.Dataset.from_tensor_slices(people(BATCH * STEPS)).batch(BATCH)
    model = create_model()
    model.compile(keras.optimizers.Ftrl(0.05), "binary_crossentropy", metrics=["accuracy", keras.metrics.Precision()])
    shown = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: print(step, logs))
    model.fit(dataset, verbose=0, callbacks=[shown])


if __name__ == "__main__":
    main()
