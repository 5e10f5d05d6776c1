"""Train on a table of raw columns that layers of the model normalize, bin, hash, cross and encode.

    python examples/gallery/structured_data.py
    tensoropt run -n 2 examples/gallery/structured_data.py
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

THALS, BATCH, STEPS = ("fixed", "normal", "reversible"), 16, 3


def patients(n):
    random = np.random.default_rng(0)
    columns = {
        "age": random.integers(20, 90, (n, 1)),
        "pressure": random.normal(130, 20, (n, 1)),
        "sex": random.integers(0, 2, (n, 1)),
        "pain": random.choice([1, 2, 3, 4, 9], (n, 1)),
        "zip": random.integers(10_000, 99_999, (n, 1)),
        "thal": random.choice(THALS, (n, 1)),
    }
    return columns, (columns["age"] + columns["pressure"] + random.normal(0, 20, (n, 1)) > 190).astype("int32")


def create_model(columns):
    types = {"pressure": "float32", "thal": "string"}
    inputs = {name: keras.Input((1,), dtype=types.get(name, "int64"), name=name) for name in columns}
    normal = layers.Normalization()
    normal.adapt(columns["pressure"])
    bins = layers.Discretization([30, 40, 50, 60, 70], output_mode="one_hot")(inputs["age"])
    sex = layers.CategoryEncoding(2, output_mode="one_hot")(inputs["sex"])
    pain = layers.IntegerLookup(vocabulary=[1, 2, 3, 4], output_mode="one_hot")(inputs["pain"])
    thal = layers.StringLookup(vocabulary=list(THALS), output_mode="one_hot")(inputs["thal"])
    place = layers.Flatten()(layers.Embedding(32, 4)(layers.Hashing(32)(inputs["zip"])))
    crossed = layers.HashedCrossing(12, output_mode="one_hot")((inputs["sex"], inputs["pain"]))
    x = layers.concatenate([normal(inputs["pressure"]), bins, sex, pain, thal, place, crossed])
    x = layers.Dropout(0.2, seed=1)(layers.Dense(32, activation="relu")(x))
    return keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x))


def main():
    keras.utils.set_random_seed(1)
    columns, is_ill = patients(BATCH * STEPS)
    dataset = tf.data.Dataset.from_tensor_slices((columns, is_ill)).batch(BATCH)
    model = create_model(columns)
    model.compile("adam", "binary_crossentropy", metrics=["accuracy", keras.metrics.Recall()])
    shown = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: print(step, logs))
    model.fit(dataset, verbose=0, callbacks=[shown])


if __name__ == "__main__":
    main()
