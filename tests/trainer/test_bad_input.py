"""Wrong use gets one sentence: what, got, expected, where in the user's code, what to do."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from trainer.models import assert_same_weights, batches, images, network, parallelized

import tensoropt


def refuses(said: str):
    return pytest.raises(tensoropt.InputError, match=said)


@pytest.fixture(scope="module")
def trainer():
    return parallelized(n_ranks=2)


# Models


class OwnStep(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(5)

    def call(self, x):
        return self.dense(keras.ops.reshape(x, (-1, 72)))

    def train_step(self, data):
        return super().train_step(data)


def test_models_that_have_steps_of_their_own():
    model = OwnStep()
    model(np.zeros((8, 6, 6, 2)))
    with refuses(r"has its own train_step \(test_bad_input.py:\d+\), which uses what the model itself is compiled with"):
        parallelized(model)
    with refuses("parallelize takes a keras.Model, or what tensoropt.capture gives, got 3"):
        parallelized(3)
    frozen = network()
    frozen.trainable = False
    with refuses("the loss depends on no trainable variable; build the model first, and leave its layers trainable"):
        parallelized(frozen)


def test_losses_and_optimizers():
    with refuses("optimizer takes a Keras optimizer or the name of one, got 'fastest'"):
        parallelized(optimizer="fastest")
    scaled = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, dtype="float8_from_mixed_bfloat16")])
    with refuses(r"variable '.*/inputs_scale' is overwritten by its gradient, as a layer of the policy 'float8_"):
        parallelized(scaled, loss="mse", metrics=None)
    for name in ("run_eagerly", "jit_compile", "auto_scale_loss"):
        with refuses(f"has no argument '{name}': (steps run as TensorFlow's graphs|losses are scaled for mixed_float16)"):
            parallelized(**{name: True})
    with refuses("unknown option 'profiling'; expected one of"):
        parallelized(option="profiling")
    with refuses("parallelize takes batch_size="):
        parallelized(batch_size=None)


# Data


@pytest.mark.parametrize(
    "data, said",
    [
        (lambda x, y: (x[:, :4], y), r"a batch has shape \[\?, 4, 6, 2\] for '.*', expected \[\?, 6, 6, 2\], for which"),
        (lambda x, y: (x, y.astype(str)), r"a batch has type string for 'y?.*', expected int64; convert it"),
        (lambda x, y: (x, np.stack([y, y], 1)), r"a batch has shape \[\?, 2\] for '.*', expected \[\?\]"),
        (lambda x, y: ((x, x), y), "x of a batch has 2 tensors, expected 1, for which the plan was made"),
    ],
    ids=["shape", "type", "labels", "inputs"],
)
def test_batches_that_arent_the_planned_ones(trainer, data, said):
    dataset = tf.data.Dataset.from_tensor_slices(data(*images(16))).batch(8)
    with refuses(said):
        trainer.fit(dataset, verbose=0)


@pytest.mark.parametrize("size", [4, 12])
def test_batches_of_another_size(trainer, size):
    """A single batch that is smaller is a last one."""
    has = rf"the data \(test_bad_input.py:\d+\) has batches of {size} samples"
    with refuses(f"{has}, expected 8, for which the plan was made; batch it by 8"):
        trainer.fit(batches(24, size), verbose=0)
    with refuses(has):
        trainer.fit(*images(24), batch_size=size, verbose=0)
    trainer.fit(batches(4, 4), epochs=2, verbose=0)


def test_calls(trainer):
    with refuses("fit has no argument 'workers'; it takes x, y, batch_size, epochs"):
        trainer.fit(batches(), workers=4)
    with refuses("evaluate has no argument 'epochs'"):
        trainer.evaluate(batches(), epochs=2)
    with refuses("callbacks takes objects of keras.callbacks.Callback, got 'best'"):
        trainer.fit(batches(), callbacks=["best"])
    with refuses("has 5 variables|of shape"):
        trainer.export_to(network(units=9))
    with refuses("export_to takes a keras.Model"):
        trainer.export_to("model")


# Files


def test_checkpoints_of_other_models_and_places_that_cant_be_written(trainer, tmp_path: Path):
    parallelized(network(units=9), n_ranks=2).save(tmp_path / "other")
    before = trainer.get_weights()
    with refuses(r"checkpoint '.*other' is of another model: got variable .* as float32\[144, 9\], expected"):
        trainer.load(tmp_path)
    with refuses("there is no checkpoint '.*none'"):
        trainer.load(tmp_path / "none")
    with refuses("'.*none.keras' can't be loaded into model"):
        trainer.load(tmp_path / "none.keras")
    (tmp_path / "file").write_text("")
    with refuses("checkpoint '.*ckpt' can't be saved: got"):
        trainer.save(tmp_path / "file" / "ckpt")
    with pytest.raises(tensoropt.TensorOptError, match=r"'/dev/full/x.weights.h5' can't be saved"):
        trainer.save_weights("/dev/full/x.weights.h5")
    assert_same_weights(trainer.get_weights(), before, 0)
