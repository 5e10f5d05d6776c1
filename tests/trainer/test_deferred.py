"""Models that leave shapes, labels, variables to their data are captured at the first batch, with plain Keras's numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf
from helpers.large import first
from helpers.mpirun import run_ranks
from trainer.deferred_cases import CASES, LABELS, X, Y, averaged, compared, contrastive, trainer_of
from trainer.models import assert_same_weights

import tensoropt

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:Gradients do not exist for variables"),  # of a result without a loss
]
WORKER = Path(__file__).with_name("deferred_cases.py")


def refuses(said: str) -> Any:
    """The user's own line is HERE."""
    return pytest.raises(tensoropt.InputError, match=said.replace("HERE", r"\(?test_deferred.py:\d+\)?"))


@pytest.mark.parametrize("case", first(7, sorted(CASES, key="a backbone".__eq__)))
def test_numbers_are_those_of_plain_keras(case: str):
    compared(case)


def test_what_the_model_and_the_loss_tell_isnt_waited_for():
    closed = keras.Sequential([keras.Input((7, 5)), keras.layers.Flatten(), keras.layers.Dense(4)])
    assert trainer_of(closed, "mse").plan.parallelism == 2
    assert trainer_of(closed, contrastive, labels=tf.TensorSpec([8, 1], "int64")).plan.parallelism == 2
    unbuilt = keras.Sequential([keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(4)])
    assert trainer_of(unbuilt, contrastive, data=(X, LABELS)).plan.parallelism == 2


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda t: t.plan, r"^plan at HERE needs a plan, which waits for the first batch, since input '.*' of model 'm' has "
         r"shape \(None, None, 5\): call fit, train_on_batch or evaluate first, or show a batch by data=\(x, y\) of "
         r"parallelize \(deferred_cases.py:\d+\)$"),
        (lambda t: t.explain(), "^explain at HERE needs a plan"),
        (lambda t: t.save("there"), "^save at HERE needs a plan"),
        (lambda t: t.set_weights([]), "^set_weights at HERE needs a plan"),
        (lambda t: t.compile("sgd"), "compile can't be called on the trainer of model .* HERE"),
        (lambda t: t.load("no/such"), "there is no checkpoint"),
        (lambda t: t.predict(X, verbose=0), r"the batch HERE has no labels, and the loss contrastive doesn't"),
        (lambda t: t.fit(X[..., :3], Y, verbose=0), r"a batch has shape \[\?, 7, 3\] for '.*', expected \[\?, \?, 5\]"),
        (lambda t: t.fit(X, LABELS[:, 0], verbose=0), r"the loss \(deferred_cases.py:\d+\) can't be computed for labels "
         r"of shape \[8\] of int64: "),
        (lambda t: t.fit(tf.data.Dataset.from_tensor_slices((X, Y)).take(0).padded_batch(8, ([None, 5], [4]))),
         "the data HERE is empty, and the model is captured for a first batch; give one"),
    ],
)  # fmt: skip
def test_what_waits_for_the_first_batch(use: Callable[[Any], Any], said: str):
    """And what was refused can be done right afterwards."""
    trainer = trainer_of(averaged(), contrastive)
    with refuses(said):
        use(trainer)
    assert len(trainer.get_weights()) == 4 and isinstance(trainer.optimizer, keras.optimizers.Adam)


def test_a_model_that_cant_be_called_on_the_batch():
    class Net(keras.Model):
        def call(self, x: Any) -> Any:
            return x["tokens"]

    trainer = trainer_of(Net(name="net"), "mse")
    with refuses(r"^model 'net' can't be called on a batch of x \[None, 7, 5\] of float64 HERE: "):
        trainer.fit(X, Y, verbose=0)
    with refuses("^get_weights at HERE needs a plan, .* model 'net' .Sequential. doesn't tell the shapes of its inputs"):
        trainer_of(keras.Sequential([keras.layers.Dense(3)], name="net"), "mse").get_weights()


def test_no_plan_within_the_limit_is_said_at_the_first_batch():
    trainer = trainer_of(averaged(), contrastive, memory=1000)
    with refuses("memory"):
        trainer.fit(X, LABELS, verbose=0)


def test_a_checkpoint_is_loaded_with_the_first_batch(tmp_path: Path):
    saved = trainer_of(averaged(), contrastive)
    x, labels = X[:16], LABELS[:16]
    saved.fit(x, labels, epochs=2, shuffle=False, verbose=0)
    saved.save(tmp_path / "ckpt")
    saved.fit(x, labels, epochs=3, initial_epoch=2, shuffle=False, verbose=0)
    trainer = trainer_of(averaged(), contrastive)
    trainer.load(tmp_path)
    with refuses(r"get_weights at HERE needs a plan, .* parallelize \(deferred_cases.py:\d+\); '.*' is loaded then"):
        trainer.get_weights()
    with refuses("is loaded then"):
        trainer(X)
    assert trainer.fit(x, labels, epochs=3, shuffle=False, verbose=0).epoch == [2]
    assert_same_weights(trainer.get_weights(), saved.get_weights(), 1e-9, 0)


def test_on_two_ranks_the_numbers_are_those_of_plain_keras(tmp_path: Path, everything: bool):
    """Data that differs between the ranks, in lengths too, is captured as rank 0 has it."""
    result = run_ranks(2, WORKER, tmp_path, *(["all"] if everything else []), timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("as on one device") == 2
    assert result.stderr.count("ranks 0 and 1 have different data") == 1
