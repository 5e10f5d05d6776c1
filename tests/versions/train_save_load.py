"""Train, save and load a small Keras model that two ranks split, next to plain Keras; `make test-versions` runs it."""

from __future__ import annotations

import platform
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tensoropt

BATCH = 16
rng = np.random.default_rng(0)
X, Y = rng.normal(size=(48, 12)), rng.integers(0, 4, 48)


def made() -> keras.Model:
    keras.utils.set_random_seed(1)
    keras.config.set_floatx("float64")
    layers = keras.layers
    model = keras.Sequential([keras.Input((12,)), layers.Dense(16, "relu"), layers.BatchNormalization(), layers.Dense(4)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(0.01), loss, metrics=["accuracy"])
    return model


def history(model: Any, epochs: int, **more: int) -> list[float]:
    fitted = model.fit(X, Y, batch_size=BATCH, epochs=epochs, shuffle=False, validation_data=(X, Y), verbose=0, **more)
    return [value for values in fitted.history.values() for value in values]


def main() -> None:
    plain = made()
    expected = [history(plain, 2), history(plain, 4, initial_epoch=2)]
    trainer = tensoropt.parallelize(made(), batch_size=BATCH, force={"MatMul": {"n": 2}}, verbose=0)
    assert "0 of" not in trainer.plan.brief(), trainer.plan.brief()
    np.testing.assert_allclose(history(trainer, 2), expected[0], rtol=1e-9)
    folder = trainer.ranks.processes.broadcast(tempfile.mkdtemp())
    prefix = str(Path(folder, "run"))
    trainer.save(prefix)
    again = tensoropt.parallelize(made(), batch_size=BATCH, force={"MatMul": {"n": 2}}, verbose=0)
    again.load(prefix)
    np.testing.assert_allclose(history(again, 4), expected[1], rtol=1e-9)
    exported = made()
    again.export_to(exported)
    for got, wanted in zip(exported.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-12)
    if trainer.ranks.processes.rank == 0:
        print(f"Python {platform.python_version()}, TensorFlow {tf.__version__}, Keras {keras.__version__}: as plain Keras")


if __name__ == "__main__":
    main()
