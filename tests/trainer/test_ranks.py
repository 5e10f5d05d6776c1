"""Trainers under mpirun: what they learn, save and load, and how they end when something is wrong."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.large import first
from helpers.mpirun import run_ranks
from trainer.models import assert_same_weights, batches, images, plain, samples_after

pytestmark = pytest.mark.usefixtures("float64")
WORKER = Path(__file__).with_name("worker.py")


def ran(n_ranks: int, *arguments: object):
    result = run_ranks(n_ranks, WORKER, *arguments, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("done") == n_ranks
    return result


@pytest.mark.parametrize("how", first(1, ["split", "unsplit"]))
def test_data_that_ranks_draw_differently_is_read_by_rank_0_which_alone_has_callbacks(tmp_path: Path, how: str):
    result = ran(2, "data", tmp_path, how)
    assert result.stderr.count("ranks 0 and 1 have different data") == 1
    told = json.loads((tmp_path / "drawn.json").read_text())
    (x, y), n = images(40), samples_after(how)
    expected, losses = plain(), []
    for epoch in range(2):
        parts = told["drawn"][4 * epoch : 4 * epoch + 4]

        def drawn(parts=parts):
            for part in parts:
                yield x[part], y[part]

        specs = (tf.TensorSpec([None, 6, 6, 2], tf.float32), tf.TensorSpec([None], tf.int64))
        history = expected.fit(tf.data.Dataset.from_generator(drawn, output_signature=specs), verbose=0)
        losses += history.history["loss"]
        assert expected.evaluate(x[:5], y[:5], verbose=0)[0] == pytest.approx(told["seen"][epoch][0], rel=1e-5)
        expected.optimizer.learning_rate = 0.02
    assert told["history"]["loss"] == pytest.approx(losses, rel=1e-5)
    assert told["evaluated"] == pytest.approx(expected.evaluate(batches(n), verbose=0), rel=1e-5)
    np.testing.assert_allclose(told["predicted"], expected.predict(x[: n // 2], verbose=0), rtol=1e-5)
    assert_same_weights(keras.models.load_model(tmp_path / "2.keras").get_weights(), expected.get_weights())
    final = plain()
    final.optimizer.build(final.trainable_variables)  # the file has its variables too
    final.load_weights(tmp_path / "last.weights.h5")
    assert_same_weights(final.get_weights(), expected.get_weights())


def test_models_that_differ_between_ranks_end_all_with_one_sentence():
    """All ranks may catch the sentence; the last one ends them."""
    result = run_ranks(2, WORKER, "models")
    assert result.returncode == 2
    assert result.stderr.count("ranks 0 and 1 recorded different models: rank 0 has ") == 1
    assert result.stderr.count("look for what depends on the rank") == 1
    said = r"refused: ranks 0 and 1 .*: rank 0 has \S*dense_\d+.* where rank 1 has .*; Keras numbers the layers"
    assert len(re.findall(said, result.stdout)) == 2, result.stdout
    assert "Traceback" not in result.stderr


def test_a_callback_that_fails_ends_all_with_its_own_error():
    result = run_ranks(2, WORKER, "callback")
    assert result.returncode == 1
    assert result.stdout.count("was interrupted, with ") == 2  # which all ranks could catch
    assert result.stderr.count("ValueError: the user's own mistake") == 1


def test_a_model_that_is_made_before_parallelize_takes_its_ranks_share_of_threads():
    share = max(1, (os.cpu_count() or 1) // 2)
    result = run_ranks(2, WORKER, "threads", env={"TENSOROPT_BIND": "0"})
    assert result.stdout.count(f": {share} threads") == 2
    result = run_ranks(2, WORKER, "threads", env={"TF_NUM_INTRAOP_THREADS": "3"})
    assert result.stdout.count(": 3 threads") == 2
