"""Keras models in stages: fitted, evaluated and saved as plain Keras does it on one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from helpers.strategies import assert_close

import tensoropt
from tensoropt.plan.staged_plan import StagedPlan

BATCH, WORDS = 16, 60


def network() -> keras.Model:
    """A tied table, a penalty, normalisation and dropout."""
    keras.utils.set_random_seed(3)
    words = keras.Input((5,), dtype="int32", name="words")
    table = keras.layers.ReversibleEmbedding(WORDS, 12, name="table")
    x = keras.layers.GlobalAveragePooling1D()(table(words))
    for _ in range(3):
        y = keras.layers.Dense(12, activation="silu", kernel_regularizer=keras.regularizers.L2(0.01))(x)
        x = keras.layers.LayerNormalization()(keras.layers.Dropout(0.25)(y) + x)
    return keras.Model(words, table(x, reverse=True))


def compiled(optimizer: Any = None) -> dict[str, Any]:
    return {
        "optimizer": optimizer or keras.optimizers.AdamW(1e-2, global_clipnorm=0.1),
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "metrics": ["accuracy"],
    }


def data(n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.integers(0, WORDS, (n, 5)), rng.integers(0, WORDS, n)


def parallelized(stages: Any = 2, n_devices: int = 4, optimizer: Any = None, **options: Any) -> Any:
    given = {"micro_batches": 4, "parallelism": n_devices, "cluster": f"v100-1x{n_devices}", "verbose": 0, **options}
    return tensoropt.parallelize(
        network(), **compiled(optimizer), batch_size=BATCH, collectives="emulated", stages=stages, **given
    )


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert set(found) == set(expected)
    for name, values in expected.items():
        assert_close(np.asarray(found[name]), np.asarray(values), 1e-9, name)


def assert_same_weights(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert_close(one, other, 1e-9, f"weight {number}")


@pytest.mark.usefixtures("float64")
def test_a_fit_is_that_of_keras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSOROPT_RANDOM", "one_device")
    (x, y), plain = data(), network()
    plain.compile(**compiled())
    fitting = {"epochs": 2, "shuffle": False, "verbose": 0, "validation_data": (x[:11], y[:11])}
    expected = plain.fit(x, y, batch_size=BATCH, **fitting).history
    trainer = parallelized()
    assert isinstance(trainer.plan, StagedPlan)
    found = trainer.fit(x, y, **fitting).history
    assert_same(found, expected)
    assert_same_weights(trainer.get_weights(), plain.get_weights())
    assert_close(trainer.predict(x, verbose=0), plain.predict(x, verbose=0), 1e-9, "predictions")
    assert_same(trainer.evaluate(x, y, return_dict=True, verbose=0), plain.evaluate(x, y, return_dict=True, verbose=0))
    trainer.save(tmp_path / "ckpt")
    other = parallelized(1, 2)
    other.load(tmp_path)
    assert_same_weights(other.get_weights(), plain.get_weights())
