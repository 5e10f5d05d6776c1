"""fit, evaluate and predict on emulated ranks do what plain Keras does on one device, with whatever data Keras takes."""

from __future__ import annotations

import math
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from trainer.models import (
    BATCH,
    CLASSES,
    assert_same_history,
    assert_same_weights,
    batches,
    fresh_plain,
    images,
    parallelized,
    plain,
    restart,
)

from tensoropt.profiling.hardware import Origin, named
from tensoropt.runtime.ranks import Processes

# Keras says so of every dataset and generator that its fit is given.
pytestmark = pytest.mark.filterwarnings("ignore:.shuffle=True. was passed")


@pytest.fixture(scope="module")
def trainer():
    return parallelized(n_ranks=3)


@pytest.fixture
def fresh(trainer):
    """The trainer as it was before its first step."""
    return restart(trainer)


def test_fit_with_a_last_batch_smaller_than_the_ranks_and_validation(fresh):
    given = {"epochs": 3, "validation_data": batches(13), "verbose": 0}
    expected = fresh_plain()
    assert_same_history(fresh.fit(batches(), **given), expected.fit(batches(), **given))
    assert_same_weights(fresh.get_weights(), expected.get_weights())
    assert fresh.optimizer.iterations == 12 and fresh.plan.n_split_operators > 3


def test_evaluate_and_predict_on_batches_of_other_sizes(fresh):
    expected = fresh_plain()
    x, y = images(29)
    for size in (5, 29):
        assert fresh.evaluate(x, y, batch_size=size, verbose=0) == pytest.approx(
            expected.evaluate(x, y, batch_size=size, verbose=0), rel=1e-5
        )
    np.testing.assert_allclose(fresh.predict(x, verbose=0), expected.predict(x, batch_size=BATCH, verbose=0), atol=1e-5)
    assert fresh.evaluate(batches(), verbose=0, return_dict=True).keys() == {"accuracy", "loss"}
    np.testing.assert_allclose(fresh.predict_on_batch(x[:3]), expected.predict_on_batch(x[:3]), atol=1e-5)


class Pairs(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int):
        x, y = images(BATCH, seed=index)
        return x.astype(np.float64), y[:, None].astype(np.int32)


def generated():
    while True:
        for index in range(3):
            yield images(BATCH, seed=index)


def arrays():
    x, y = images()
    return {"x": x, "y": y, "shuffle": False, "batch_size": BATCH}


@pytest.mark.parametrize(
    "data",
    [
        arrays,
        pytest.param(lambda: {**arrays(), "validation_split": 0.4}, marks=pytest.mark.large),
        pytest.param(lambda: {**arrays(), "sample_weight": images()[1] + 0.5}, marks=pytest.mark.large),
        lambda: {"x": Pairs(), "shuffle": False, "class_weight": {label: label + 1.0 for label in range(CLASSES)}},
        lambda: {"x": generated(), "steps_per_epoch": 2, "shuffle": False},
        lambda: {"x": batches().repeat(), "steps_per_epoch": 3, "validation_data": images(8), "validation_freq": 2},
    ],
    ids=["arrays", "validation split", "sample weights", "PyDataset and class weights", "generator", "repeated"],
)
def test_all_that_keras_takes(fresh, data):
    expected = fresh_plain()
    assert_same_history(fresh.fit(epochs=2, verbose=0, **data()), expected.fit(epochs=2, verbose=0, **data()))
    assert_same_weights(fresh.get_weights(), expected.get_weights())
    tuned = {pipeline.options().autotune.enabled for pipeline in fresh._progress.shares._pipelines.values()}
    assert tuned == {None if isinstance(data()["x"], tf.data.Dataset) else False}


def test_inputs_by_name_and_several_results():
    def model() -> keras.Model:
        keras.utils.set_random_seed(1)
        left, right = keras.Input((4,), name="left"), keras.Input((3,), name="right")
        x = keras.layers.Dense(6)(keras.layers.Concatenate()([left, right]))
        return keras.Model([right, left], {"a": keras.layers.Dense(1)(x), "b": keras.layers.Dense(2)(x)})

    # Whole batches: Keras weighs the losses of several results by batches and not by samples.
    rng = np.random.default_rng(1)
    x = {"left": rng.normal(size=(16, 4)), "right": rng.normal(size=(16, 3)), "unused": np.zeros(16)}
    y = {"a": rng.normal(size=16), "b": rng.normal(size=(16, 2))}
    given = {"loss": {"a": "mse", "b": "mae"}, "loss_weights": {"a": 2.0, "b": 1.0}, "metrics": {"a": ["mae"], "b": ["mse"]}}
    trainer = parallelized(model(), keras.optimizers.SGD(0.1), **given)
    expected = model()
    expected.compile(keras.optimizers.SGD(0.1), **given)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    del x["unused"]
    assert_same_history(
        trainer.fit(data, epochs=2, verbose=0), expected.fit(x, y, batch_size=BATCH, shuffle=False, epochs=2, verbose=0)
    )
    results = trainer.predict(x, verbose=0)
    assert {name: value.shape for name, value in results.items()} == {"a": (16, 1), "b": (16, 2)}


def test_averages_take_the_weights_place_at_the_end():
    make = lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)  # noqa: E731
    trainer, expected = parallelized(optimizer=make()), plain(make())
    trainer.fit(batches(16), verbose=0)
    expected.fit(batches(16), verbose=0)
    assert_same_weights(trainer.get_weights(), expected.get_weights())


def test_the_users_model_has_the_trained_values_and_stays_uncompiled(fresh):
    fresh.fit(batches(), verbose=0)
    other = plain()
    other.set_weights(fresh.inner.get_weights())
    assert other.evaluate(batches(), verbose=0) == pytest.approx(fresh.evaluate(batches(), verbose=0), rel=1e-5)
    assert not fresh.inner.compiled


def test_steps_give_keras_loops_numbers_and_metrics_may_have_many(fresh):
    seen = []
    seeing = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append((batch, logs)))
    fresh.fit(batches(16), verbose=0, callbacks=[seeing])
    assert [batch for batch, _ in seen] == [0, 1]
    assert all(isinstance(value, float) and math.isfinite(value) for _, logs in seen for value in logs.values())
    assert fresh.train_on_batch(*images(BATCH), return_dict=True).keys() == {"accuracy", "loss"}
    several = parallelized(metrics=[keras.metrics.SparseTopKCategoricalAccuracy(k=2)])
    assert several.evaluate(batches(), verbose=0, return_dict=True).keys() == {"sparse_top_k_categorical_accuracy", "loss"}


def test_a_plan_that_splits_nothing_says_who_has_all_cores(monkeypatch, capfd):
    monkeypatch.setenv("TENSOROPT_QUIET", "0")
    monkeypatch.setattr(Processes, "local_size", 2)
    parallelized(n_ranks=2, cluster=replace(named("v100-1x2"), measured=Origin("2026-01-01", "", 0)))
    assert "a single rank (-n 1) has all of a machine's cores" in capfd.readouterr().err
