"""Training that was saved goes on as if it had never stopped: under another plan, on other ranks, in plain Keras."""

from __future__ import annotations

from pathlib import Path

import keras
import pytest
import tensorflow as tf
from trainer.models import (
    METRICS,
    assert_same_history,
    assert_same_weights,
    batches,
    fresh_plain,
    loss,
    network,
    parallelized,
    shuffled,
)

import tensoropt
from tensoropt.runtime.checkpoint import read_metadata

pytestmark = pytest.mark.usefixtures("float64")


class Stop(Exception):
    pass


def stop_after(n_steps: int, trainer, path: Path) -> keras.callbacks.Callback:
    class Stopping(keras.callbacks.Callback):
        seen = 0

        def on_train_batch_end(self, batch, logs=None):
            self.seen += 1
            if self.seen == n_steps:
                trainer.save(path)
                raise Stop

    return Stopping()


@pytest.fixture(scope="module")
def saved(float64, tmp_path_factory):
    """A checkpoint of three ranks in the middle of the second epoch, and the weights at the end of the third."""
    path = tmp_path_factory.mktemp("run") / "ckpt"
    trainer = parallelized(n_ranks=3)
    with pytest.raises(Stop):
        trainer.fit(shuffled(), epochs=3, verbose=0, callbacks=[stop_after(7, trainer, path)])
    expected = fresh_plain()
    history = expected.fit(shuffled(), epochs=3, verbose=0)
    return path, history, expected.get_weights()


def test_it_goes_on_under_another_plan_with_the_batches_that_are_left(saved):
    path, expected, weights = saved
    trainer = parallelized(n_ranks=2)
    trainer.load(path)
    assert (trainer.position.epoch, trainer.position.step) == (1, 2)
    # Keras opens a dataset of known length twice an epoch.
    assert read_metadata(path).content == {"position": {"epoch": 1, "step": 2, "opened": 2, "taken": 2}}
    steps = []
    seeing = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: steps.append(batch))
    got = trainer.fit(shuffled(), epochs=3, verbose=0, callbacks=[seeing])
    assert got.epoch == [1, 2] and steps == [2, 3, 4, 0, 1, 2, 3, 4]
    assert got.history["loss"][-1] == pytest.approx(expected.history["loss"][-1], rel=1e-5)
    assert_same_weights(trainer.get_weights(), weights)
    assert trainer.optimizer.iterations == 15
    assert trainer.fit(shuffled(), epochs=1, verbose=0).epoch == [0]


def test_passes_that_last_for_many_epochs_go_on_too(tmp_path: Path):
    given = {"epochs": 3, "steps_per_epoch": 3, "verbose": 0}
    trainer, expected = parallelized(n_ranks=2), fresh_plain()
    expected.fit(shuffled().repeat(), **given)
    with pytest.raises(Stop):
        trainer.fit(shuffled().repeat(), callbacks=[stop_after(4, trainer, tmp_path / "x")], **given)
    trainer.fit(batches(16), verbose=0)
    trainer.load(tmp_path)
    trainer.fit(shuffled().repeat(), **given)
    assert_same_weights(trainer.get_weights(), expected.get_weights())


@pytest.fixture(scope="module")
def in_order(float64, tmp_path_factory):
    """The same with batches in a fixed order."""
    path = tmp_path_factory.mktemp("run") / "ckpt"
    trainer = parallelized(n_ranks=2)
    with pytest.raises(Stop):
        trainer.fit(batches(32), epochs=3, verbose=0, callbacks=[stop_after(7, trainer, path)])
    expected = fresh_plain()
    expected.fit(batches(32), epochs=3, verbose=0)
    return path, expected.get_weights()


@pytest.mark.parametrize("door", ["tensoropt", "tensorflow"])
def test_plain_keras_goes_on(in_order, door):
    path, expected = in_order
    model, optimizer = network(), keras.optimizers.Adam(1e-2)
    optimizer.build(model.trainable_variables)
    if door == "tensoropt":
        tensoropt.load_checkpoint(path, model, optimizer)
    else:
        tf.train.Checkpoint(model=model, optimizer=optimizer).restore(str(path)).assert_consumed()
    model.compile(optimizer, loss(), metrics=METRICS, jit_compile=False)
    position = read_metadata(path).content["position"]
    model.fit(batches(32).skip(position["step"]), verbose=0)
    model.fit(batches(32), epochs=3 - position["epoch"] - 1, verbose=0)
    assert_same_weights(model.get_weights(), expected)


def test_keras_files_go_both_ways(tmp_path: Path):
    trainer, expected = parallelized(n_ranks=2), fresh_plain()
    expected.fit(batches(16), verbose=0)
    expected.save_weights(tmp_path / "plain.weights.h5")
    trainer.load_weights(tmp_path / "plain.weights.h5")
    assert_same_weights(trainer.get_weights(), expected.get_weights(), 0)
    assert trainer.optimizer.iterations == 2
    given = {"epochs": 2, "verbose": 0}
    assert_same_history(trainer.fit(batches(16), **given), expected.fit(batches(16), **given))
    trainer.save(tmp_path / "whole.keras")
    whole = keras.models.load_model(tmp_path / "whole.keras")
    assert_same_weights(whole.get_weights(), trainer.get_weights(), 0)
    assert_same_history(trainer.fit(batches(16), **given), whole.fit(batches(16), **given))


def test_a_function_goes_on(tmp_path: Path):
    def made():
        w = tf.Variable(tf.ones([6, 3]), name="w")
        signature = [tf.TensorSpec([8, 6]), tf.TensorSpec([8, 3])]
        captured = tensoropt.capture(lambda x, y: tf.reduce_mean((x @ w - y) ** 2), signature)
        where = {"collectives": "emulated", "parallelism": 2, "cluster": "v100-1x4"}
        return tensoropt.parallelize(captured, keras.optimizers.Adam(0.1), **where), w

    x, y = tf.random.stateless_normal([8, 6], [1, 2]), tf.random.stateless_normal([8, 3], [3, 4])
    first, w = made()
    losses = [first.step(x, y) for _ in range(4)]
    first.save(tmp_path / "f")
    losses += [first.step(x, y) for _ in range(2)]
    second, w = made()
    second.load(tmp_path)
    assert [second.step(x, y) for _ in range(2)] == pytest.approx(losses[4:], rel=1e-6)
    second.export()
    first.captured.variables[0].assign(w)
    first.export()
    assert w.numpy() == pytest.approx(first.captured.variables[0].numpy(), rel=1e-6)
