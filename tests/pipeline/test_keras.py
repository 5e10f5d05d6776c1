"""Keras models in stages: fitted, evaluated and saved as plain Keras does it on one device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from helpers.mpirun import run_ranks
from helpers.strategies import assert_close
from pipeline.keras_models import BATCH, compiled, data, network

import tensoropt
from tensoropt.plan.staged_plan import StagedPlan

WORKER = Path(__file__).parent / "keras_worker.py"


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


def told_by_ranks(n_ranks: int, folder: Path, epochs: int) -> dict[str, Any]:
    done = run_ranks(n_ranks, WORKER, str(folder), str(epochs), env={"TENSOROPT_RANDOM": "one_device"})
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert "2 stages" in told["plan"]
    return told


@pytest.mark.usefixtures("float64")
def test_real_ranks_fit_as_keras_does(tmp_path: Path) -> None:
    """Two ranks train two epochs and save; four go on with a third. A callback evaluates, and sets the learning rate."""
    (x, y), plain, seen = data(), network(), []
    plain.compile(**compiled())

    def at_end(epoch: int, logs: object) -> None:
        seen.append(plain.evaluate(x[:7], y[:7], verbose=0)[0])
        plain.optimizer.learning_rate = 5e-3

    for n_ranks, epochs in ((2, 2), (4, 3)):
        callback, first = keras.callbacks.LambdaCallback(on_epoch_end=at_end), len(seen)
        fitting = {"epochs": epochs, "shuffle": False, "verbose": 0, "validation_data": (x[:11], y[:11])}
        expected = plain.fit(x, y, batch_size=BATCH, initial_epoch=first, callbacks=[callback], **fitting)
        told = told_by_ranks(n_ranks, tmp_path, epochs)
        assert told["epochs"] == expected.epoch
        assert_same(told["history"], expected.history)
        assert_same_weights([np.asarray(weight) for weight in told["weights"]], plain.get_weights())
        assert_close(np.asarray(told["seen"]), np.asarray(seen[first:]), 1e-9, "what the callback evaluated")
        assert_close(np.asarray(told["predicted"]), plain.predict(x[:13], verbose=0), 1e-9, "predictions")
