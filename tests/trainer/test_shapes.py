"""Batches of other lengths than the planned one have programs of their own, up to a number and a memory limit."""

from __future__ import annotations

import logging
from typing import Any

import keras
import numpy as np
import pytest
from trainer.deferred_cases import BATCH, LABELS, X, Y, averaged, compared, contrastive, trainer_of
from trainer.models import assert_same_weights

import tensoropt

pytestmark = pytest.mark.usefixtures("float64")


def refuses(said: str) -> Any:
    """The user's own line is HERE."""
    return pytest.raises(tensoropt.InputError, match=said.replace("HERE", r"\(test_shapes.py:\d+\)"))


def test_batches_of_several_lengths_give_plain_keras_numbers_and_are_said_once(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING, "tensoropt"):
        trainer = compared("batches of several lengths")
    said = [record.getMessage() for record in caplog.records if "program is made for each shape" in record.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("batches have x [8, 7, 5], y [8, 1] where the plan was made for x [8, 5, 5], y [8, 1]: ")
    assert {op.name: op.config for op in trainer.plan.operators if op.config.used_axes}


def test_more_than_eight_shapes_are_refused_and_others_go_on():
    trainer = trainer_of(averaged(), contrastive)
    trainer.test_on_batch(X[:BATCH], LABELS[:BATCH])
    for length in (1, 2, 3, 4, 5, 6, 8):
        trainer.predict_on_batch(np.zeros((BATCH, length, 5)))
    with refuses(r"batches HERE have more than 8 shapes, x \[8, 9, 5\], .* among them; a program is made for each: pad to"):
        trainer.predict_on_batch(np.zeros((BATCH, 9, 5)))
    assert trainer.predict_on_batch(X[:BATCH, :6]).shape == (8, 4)


def test_a_length_beyond_the_memory_limit_is_refused_with_the_longest_that_fits():
    trainer = trainer_of(averaged(), contrastive, memory=60_000)
    trainer.fit(X[:BATCH], LABELS[:BATCH], verbose=0)
    before = trainer.get_weights()
    long = np.zeros((BATCH, 120, 5))
    said = (
        r"a batch HERE of x \[8, 120, 5\], y \[8, 1\] needs .* of a device with the configs of the plan, more than the "
        r"limit of .*; the longest that fits is x \[8, \d+, 5\]"
    )
    with refuses(said) as found:
        trainer.fit(long, LABELS[:BATCH], verbose=0)
    longest = int(str(found.value).partition("fits is x [8, ")[2].partition(",")[0])
    assert 7 < longest < 120
    with refuses(rf"a batch HERE .* the longest that fits is x \[8, {longest}, 5\]"):
        trainer.train_on_batch(long[:, : longest + 1], LABELS[:BATCH])
    assert_same_weights(trainer.get_weights(), before, 0)
    trainer.train_on_batch(long[:, :longest], LABELS[:BATCH])
    with refuses(r"a batch HERE of x \[8, 999, 5\], .* the longest that fits is"):
        trainer.predict_on_batch(np.zeros((BATCH, 999, 5)))


def test_fixed_extents_stay_fixed():
    trainer = trainer_of(averaged(), contrastive, data=(X, LABELS))
    assert trainer.predict(X[:, :4], verbose=0).shape == (20, 4)
    with refuses(r"a batch has shape \[\?, 7, 3\] for '.*', expected \[\?, \?, 5\]"):
        trainer.predict(X[..., :3], verbose=0)

    class Net(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(4)

        def call(self, x: Any) -> Any:
            return self.dense(x)

    trainer = trainer_of(Net(), "mse")
    trainer.train_on_batch(X[:BATCH, 0], np.zeros((BATCH, 4), "int64"))
    with refuses("y of a batch HERE has type float64 where the first one had int64, to which it can't be converted without"):
        trainer.fit(X[:, 0], Y, verbose=0)
    with refuses(r"the model can't take batches HERE of x \[8, 3\], y \[8, 4\], the plan was made for x \[8, 5\], y"):
        trainer.train_on_batch(X[:BATCH, 0, :3], np.zeros((BATCH, 4), "int64"))
