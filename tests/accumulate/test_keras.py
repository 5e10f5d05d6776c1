"""Keras models in micro-batches: fitted as plain Keras fits them on the whole batch."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from helpers.large import first
from helpers.strategies import assert_close

import tensoropt


def _model() -> keras.Model:
    keras.utils.set_random_seed(3)
    decay = keras.regularizers.L2(0.01)
    layers = [
        keras.layers.Dense(12, activation="silu", kernel_regularizer=decay),
        keras.layers.LayerNormalization(),
        keras.layers.Dense(4),
    ]
    return keras.Sequential([keras.Input((6,)), *layers])


def _compiled(is_scaled: bool) -> dict[str, Any]:
    optimizer = keras.optimizers.AdamW(1e-2, global_clipnorm=0.5)
    return {
        "optimizer": keras.optimizers.LossScaleOptimizer(optimizer) if is_scaled else optimizer,
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "metrics": ["accuracy"],
    }


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("is_scaled", first(1, [True, False]))
def test_a_fit_is_that_of_keras(is_scaled: bool, everything: bool) -> None:
    """Losses with a penalty on parameters, metrics, clipping by the global norm; by ``--all`` a smaller last batch."""
    n = 40 if everything else 32
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(n, 6)), rng.integers(0, 4, n)
    plain = _model()
    plain.compile(**_compiled(is_scaled))
    expected = plain.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0).history
    trainer = tensoropt.parallelize(_model(), **_compiled(is_scaled), batch_size=16, micro_batches=4, parallelism=1)
    found = trainer.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0).history
    assert set(found) == set(expected)
    for name, values in expected.items():
        assert_close(np.asarray(found[name]), np.asarray(values), 1e-10, name)
    assert_close(trainer.predict(x), plain.predict(x, verbose=0), 1e-10, "predictions")
