"""Models with steps of their own, and custom training loops, train to plain Keras's numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.large import first
from helpers.mpirun import run_ranks
from helpers.switches import floats
from trainer.own_steps import CASES, check, inputs, loop_of

import tensoropt

EMULATED: Any = {"collectives": "emulated", "parallelism": 2, "cluster": "v100-1x2"}


# Two ranks are trained by "diffusion", too.
@pytest.mark.parametrize("name", first(5, sorted(CASES, key=("spectral", "diffusion").__contains__)))
def test_steps_of_their_own_give_plain_keras_numbers(name: str, tmp_path: Path):
    trainer = check(name, **EMULATED)
    assert trainer.plan.n_collectives
    if name == "gan":  # callbacks draw images by a part of the model
        noise = np.random.default_rng(2).normal(size=(3, 4))
        drawn = trainer.generator(noise)
        with trainer.as_trained() as (model, _):
            np.testing.assert_array_equal(drawn, model.generator(noise))
    if name == "gan":  # both optimizers go on
        trainer.save(tmp_path / "gan")
        expected = trainer.fit(inputs(), epochs=3, initial_epoch=2, shuffle=False, verbose=0).history
        trainer.load(tmp_path)
        again = trainer.fit(inputs(), epochs=3, shuffle=False, verbose=0).history
        assert again["g_loss"] == pytest.approx(expected["g_loss"], rel=1e-9)
    if name == "distiller":
        trainer.save_weights(tmp_path / "of.weights.h5")
        with floats("float64"):
            other = CASES[name].model()
        other.optimizer.build(other.trainable_variables)
        other.load_weights(tmp_path / "of.weights.h5")
        assert all(map(np.array_equal, other.get_weights(), trainer.get_weights()))


class Refused(keras.Sequential):
    """A step that can't be captured, one of several."""

    kind = ""

    def train_step(self, x: Any) -> dict[str, Any]:
        weights = self.trainable_variables
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x)))
        gradients = tape.gradient(loss, weights)
        if self.kind == "loss alone":
            return {"loss": loss}
        if self.kind == "rows":
            gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
        if self.kind == "loop":
            tf.while_loop(lambda k: k < 2, lambda k: [self.optimizer.apply(gradients, weights), k + 1][1:], [0])
        elif self.kind == "others":
            self.optimizer.apply(gradients[:1], weights[:1])
            self.optimizer.apply(gradients[1:], weights[1:])
        else:
            self.optimizer.apply(gradients, weights)
        return {"loss": loss} if self.kind != "number" else loss


@pytest.mark.parametrize(
    ("kind", "said"),
    [("loss alone", r"no optimizer and assigns to no variable \(test_own_steps.py:\d+\), so that nothing would be"),
     ("rows", r"gradient with respect to 'embeddings' \(test_own_steps.py:\d+\) is computed with: it is rows"),
     ("loop", r"SGD is applied inside of a loop or a tf.function \(test_own_steps.py:\d+\)"),
     ("others", r"SGD is applied \(test_own_steps.py:\d+\) to other variables than before \(test_own_steps.py:\d+\)"),
     ("number", "train_step of model '.*' returns .*; expected a dictionary from names to numbers")],
)  # fmt: skip
def test_steps_that_cant_be_captured_are_refused(kind: str, said: str):
    model = Refused([keras.Input((4,), dtype="int64"), keras.layers.Embedding(9, 6), keras.layers.Dense(3)])
    model.kind = kind
    with pytest.raises(tensoropt.InputError, match=r"call model\.compile"):
        tensoropt.parallelize(model, "sgd", batch_size=8, **EMULATED)
    model.compile("sgd")
    with pytest.raises(tensoropt.InputError, match=said):
        tensoropt.parallelize(model, batch_size=8, data=np.zeros((8, 4), np.int64), **EMULATED)


def test_a_step_that_was_never_called_says_so_and_takes_no_larger_batch():
    loop, step = loop_of(**EMULATED)
    with pytest.raises(tensoropt.InputError, match="a training step is planned when it is first called"):
        step.save("nowhere")
    with pytest.raises(tensoropt.InputError, match="with a batch of 9 samples, expected batch_size=8"):
        step(inputs(9), np.zeros(9, np.int64))
    with pytest.raises(tensoropt.InputError, match="optimizer= of training_step takes a Keras optimizer"):
        tensoropt.training_step(loop.step, model=loop.model, optimizer="sgd", batch_size=8)


def test_steps_on_two_ranks(tmp_path: Path, everything: bool):
    worker, how = Path(__file__).with_name("own_steps_worker.py"), ["all"] if everything else []
    result = run_ranks(2, worker, tmp_path, *how, timeout=300)
    assert result.stdout.count("as on one device") == 2, result.stderr
    said = r"a training step reads 'adam\w*/iteration' of the optimizer that it applies \(own_steps.py:\d+\)"
    assert len(re.findall(said, result.stderr)) == 1
    assert result.returncode == 2 and "Traceback" not in result.stderr
