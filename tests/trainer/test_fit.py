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
        return images(BATCH, seed=index)


def test_pipelines_of_our_own_are_not_tuned(fresh):
    x, y = images()
    for data in ({"x": x, "y": y}, {"x": Pairs()}, {"x": batches()}):
        fresh.fit(**data, verbose=0)
        tuned = {pipeline.options().autotune.enabled for pipeline in fresh._progress.shares._pipelines.values()}
        assert tuned == {None if isinstance(data["x"], tf.data.Dataset) else False}


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
