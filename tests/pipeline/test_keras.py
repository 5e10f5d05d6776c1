"""Keras models in stages: fitted, evaluated and saved as plain Keras does it on one device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.mpirun import run_ranks
from helpers.strategies import assert_close
from pipeline.keras_models import BATCH, WORDS, compiled, data, images, network, normalised_network, scaling

import tensoropt

WORKER = Path(__file__).parent / "keras_worker.py"


def parallelized(stages: Any = 2, n_devices: int = 4, optimizer: Any = None, network: Any = network, **options: Any) -> Any:
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
@pytest.mark.parametrize("is_normalised", [True, pytest.param(False, marks=pytest.mark.large)])
def test_a_fit_is_that_of_keras(is_normalised: bool, tmp_path: Path, everything: bool) -> None:
    """With batch normalisation stages take the whole batch at once, with ``--all`` a last one of eight samples too."""
    make = normalised_network if is_normalised else network
    (x, y), plain = images(24 if everything else BATCH) if is_normalised else data(), make()
    plain.compile(**compiled())
    fitting = {"epochs": 2, "shuffle": False, "verbose": 0, "validation_data": (x[:8], y[:8])}
    expected = plain.fit(x, y, batch_size=BATCH, **fitting).history
    trainer = parallelized(2, 3, network=make, micro_batches=None) if is_normalised else parallelized()
    assert_same(trainer.fit(x, y, **fitting).history, expected)
    assert_same_weights(trainer.get_weights(), plain.get_weights())
    x, y = x[:8], y[:8]
    assert_close(trainer.predict(x, verbose=0), plain.predict(x, verbose=0), 1e-9, "predictions")
    if is_normalised:
        assert "the batch at once" in trainer.plan.brief()
        told = "on the whole batch: a step of this model can't be taken in 2 micro-batches"
        assert told in trainer.plan.frontier.summary()
        return
    assert_same(trainer.evaluate(x, y, return_dict=True, verbose=0), plain.evaluate(x, y, return_dict=True, verbose=0))
    trainer.save(tmp_path / "ckpt")
    other = parallelized(1, 2)
    other.load(tmp_path)
    assert_same_weights(other.get_weights(), plain.get_weights())


@pytest.mark.large
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("n_ranks", [2, 4])
def test_batch_normalisation_on_real_ranks_is_that_of_keras(n_ranks: int, tmp_path: Path) -> None:
    (x, y), plain = images(), normalised_network()
    plain.compile(**compiled())
    set_rate = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: setattr(plain.optimizer, "learning_rate", 5e-3))
    fitting = {"epochs": 2, "shuffle": False, "verbose": 0, "validation_data": (x[:8], y[:8])}
    expected = plain.fit(x, y, batch_size=BATCH, callbacks=[set_rate], **fitting)
    told = told_by_ranks(n_ranks, tmp_path, 2, NORMALISED="1")
    assert_same(told["history"], expected.history)
    assert_same_weights([np.asarray(weight) for weight in told["weights"]], plain.get_weights())


def told_by_ranks(n_ranks: int, folder: Path, epochs: int, **env: str) -> dict[str, Any]:
    done = run_ranks(n_ranks, WORKER, str(folder), str(epochs), env=env)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert f"{env.get('STAGES', '2')} stages" in told["plan"] and env.get("SCHEDULE", "") in told["plan"]
    return told


@pytest.mark.usefixtures("float64")
def test_real_ranks_fit_as_keras_does(tmp_path: Path, everything: bool) -> None:
    """Two ranks of two stages each train two epochs and save; others go on. A callback evaluates, and sets the rate.

    The loss is scaled.
    """
    (x, y), plain, seen = data(BATCH), network(), []
    plain.compile(**compiled(scaling()))

    def at_end(epoch: int, logs: object) -> None:
        seen.append(plain.evaluate(x[:8], y[:8], verbose=0)[0])
        plain.optimizer.learning_rate = 5e-3

    interleaved = {"STAGES": "4", "SCHEDULE": "interleaved"}
    for n_ranks, epochs, asked in ((2, 2, interleaved), (4, 3, {}), (4, 4, interleaved))[: 3 if everything else 1]:
        callback, first = keras.callbacks.LambdaCallback(on_epoch_end=at_end), len(seen)
        fitting = {"epochs": epochs, "shuffle": False, "verbose": 0, "validation_data": (x[:8], y[:8])}
        expected = plain.fit(x, y, batch_size=BATCH, initial_epoch=first, callbacks=[callback], **fitting)
        told = told_by_ranks(n_ranks, tmp_path, epochs, **asked)
        assert told["epochs"] == expected.epoch
        assert_same(told["history"], expected.history)
        assert_same_weights([np.asarray(weight) for weight in told["weights"]], plain.get_weights())
        assert_close(np.asarray(told["seen"]), np.asarray(seen[first:]), 1e-9, "what the callback evaluated")
        assert_close(np.asarray(told["predicted"]), plain.predict(x[:8], verbose=0), 1e-9, "predictions")


def test_a_scaled_loss_of_stages_with_other_types() -> None:
    def layers() -> keras.Model:
        keras.utils.set_random_seed(3)
        x = keras.Input((6,))
        hidden = keras.layers.Dense(64, activation="tanh")(x)
        return keras.Model(x, keras.layers.Dense(WORDS, dtype="float64")(hidden))

    x, (_, y), plain, sgd = np.eye(BATCH, 6, dtype=np.float32), data(BATCH), layers(), keras.optimizers.SGD
    plain.compile(**compiled(scaling(sgd(0.1))))
    trainer = parallelized(2, 2, scaling(sgd(0.1)), layers)
    for model in (plain, trainer):
        model.fit(x, y, batch_size=BATCH, epochs=3, shuffle=False, verbose=0)
    for found, expected in zip(trainer.get_weights(), plain.get_weights(), strict=True):
        assert_close(found, expected, 1e-6, "a weight")


@pytest.mark.usefixtures("float64")
def test_class_weights_several_stages_and_clipping_by_each_norm(everything: bool) -> None:
    """A scaled loss; all forward passes first; a batch of one sample, which isn't divided; the rate is set.

    By ``--all`` in four stages.
    """

    def optimizer() -> keras.optimizers.Optimizer:
        return scaling(keras.optimizers.SGD(0.5, momentum=0.9, clipnorm=0.02, weight_decay=1e-3))

    (x, y), plain = data(19 if everything else BATCH), network()
    plain.compile(**compiled(optimizer()))
    n_stages = 4 if everything else 2
    trainer = parallelized(n_stages, n_stages, optimizer(), schedule="gpipe", data=data(BATCH))
    weights = {label: 1 + label / WORDS for label in range(WORDS)}
    for model in (plain, trainer):
        model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0, class_weight=weights)
        model.optimizer.learning_rate = 0.1
    found, expected = (model.train_on_batch(x[:BATCH], y[:BATCH], return_dict=True) for model in (trainer, plain))
    assert_same(found, expected)
    assert_same_weights(trainer.get_weights(), plain.get_weights())
    found, expected = (model.train_on_batch(x[:1], y[:1], return_dict=True) for model in (trainer, plain))
    assert_same(found, expected)
    assert_same_weights(trainer.get_weights(), plain.get_weights())
    assert [len(stage.devices) for stage in trainer.plan.stages] == [1] * n_stages


@pytest.mark.usefixtures("float64")
def test_a_captured_function_is_trained_in_stages_by_its_plan(tmp_path: Path) -> None:
    values = np.linspace(-1, 1, 12)
    first, second = tf.Variable(values.reshape(3, 4), name="first"), tf.Variable(values.reshape(4, 3), name="second")
    started = [variable.numpy() for variable in (first, second)]

    def loss(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.square(tf.tanh(x @ first) @ second - x))

    x, losses = np.random.default_rng(1).normal(size=(8, 3)), []

    def restart() -> None:
        for variable, value in zip((first, second), started, strict=True):
            variable.assign(value)

    for plan in (None, tmp_path / "plan.json"):
        restart()
        captured = tensoropt.capture(loss, [tf.TensorSpec((8, 3), tf.float64)])
        optimizer = keras.optimizers.Adam(0.1, global_clipnorm=0.01, loss_scale_factor=7.0)
        where = {"parallelism": 2, "cluster": "v100-1x2", "collectives": "emulated", "verbose": 0}
        asked = {"stages": 2, "micro_batches": 2} if plan is None else {"plan": plan}
        trainer = tensoropt.parallelize(captured, optimizer, **where, **asked)
        losses.append([trainer.step(x) for _ in range(3)])
        trainer.plan.save(tmp_path / "plan.json")
    assert losses[0] == losses[1]
    plain = keras.optimizers.Adam(0.1, global_clipnorm=0.01, loss_scale_factor=7.0)
    restart()
    for step in range(3):
        with tf.GradientTape() as tape:
            value = loss(x)
            scaled = plain.scale_loss(value)
        plain.apply(tape.gradient(scaled, [first, second]), [first, second])
        assert_close(np.asarray(losses[0][step]), value.numpy(), 1e-9, f"the loss of step {step}")
    assert any((variable.numpy() != start).any() for variable, start in zip((first, second), started, strict=True))


class Mixing(keras.optimizers.SGD):
    """Divides each gradient by the sum of all."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        total = sum(keras.ops.sum(keras.ops.abs(gradient)) for gradient in grads)
        super().apply([gradient / total for gradient in grads], trainable_variables)


class AsKeras(keras.Model):
    """Has a training step of its own, which takes gradients and applies them as they are."""

    def train_step(self, batch: Any) -> Any:
        x, y, _ = keras.utils.unpack_x_y_sample_weight(batch)
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x, y, predicted)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        for metric in self.metrics:
            metric.update_state(loss) if metric.name == "loss" else metric.update_state(y, predicted)
        return {metric.name: metric.result() for metric in self.metrics}


@pytest.mark.usefixtures("float64")
def test_a_training_step_of_ones_own_that_applies_its_gradients_is_cut() -> None:
    x, y = data(BATCH)
    plain, own = (AsKeras(each.inputs, each.outputs) for each in (network(), network()))
    for model in (plain, own):
        model.compile(**compiled())
    where = {"cluster": "v100-1x2", "collectives": "emulated", "verbose": 0, "data": (x, y)}
    trainer = tensoropt.parallelize(own, batch_size=BATCH, stages=2, micro_batches=4, **where)
    for _ in range(2):
        found, expected = (model.train_on_batch(x, y, return_dict=True) for model in (trainer, plain))
        assert_same(found, expected)
    assert_same_weights(trainer.get_weights(), plain.get_weights())


@pytest.mark.usefixtures("float64")
def test_the_step_of_a_custom_loop_is_cut() -> None:
    (x, y), losses = data(BATCH), []
    for asked in ({}, {"stages": 2, "micro_batches": 4, "schedule": "gpipe"}):
        model, optimizer, loss = network(), scaling(), compiled()["loss"]

        def step(x: Any, y: Any, model: Any = model, optimizer: Any = optimizer, loss: Any = loss) -> Any:
            with tf.GradientTape() as tape:
                value = loss(y, model(x, training=True))
                scaled = optimizer.scale_loss(value)
            optimizer.apply(tape.gradient(scaled, model.trainable_variables), model.trainable_variables)
            return value

        taken = {"model": model, "optimizer": optimizer, "batch_size": BATCH, "collectives": "emulated", "verbose": 0}
        run = tensoropt.training_step(step, cluster="v100-1x2", **taken, **asked) if asked else tf.function(step)
        losses.append([float(run(x, y)) for _ in range(3)])
    assert len(run.plan.stages) == 2
    assert_close(np.asarray(losses[1]), np.asarray(losses[0]), 1e-9, "losses")


class OwnStep(keras.Model):
    def train_step(self, batch: Any) -> Any:
        x, y = batch
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = [2 * gradient for gradient in tape.gradient(loss, self.trainable_variables)]
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


@pytest.mark.usefixtures("float64")
def test_placed_layers_run_by_the_schedule_that_is_asked_for() -> None:
    keras.utils.set_random_seed(5)
    layers = [keras.layers.Dense(4, "tanh", name="low"), keras.layers.Dense(4, name="high")]
    plain = keras.Sequential([keras.Input((6,)), *layers], name="two")
    model = keras.models.clone_model(plain)
    model.set_weights(plain.get_weights())
    rng = np.random.default_rng(6)
    x, y = rng.normal(size=(8, 6)), rng.normal(size=(8, 4))
    plain.compile("sgd", "mse")
    placed = {"Tanh": {"devices": [0]}, "Square": {"devices": [1, 2, 3]}}
    where = {"cluster": "v100-1x4", "collectives": "emulated", "verbose": 0, "schedule": "gpipe", "micro_batches": 2}
    trainer = tensoropt.parallelize(model, "sgd", "mse", batch_size=8, force=placed, **where)
    assert trainer.plan.schedule == "gpipe"
    assert [stage.devices for stage in trainer.plan.stages] == [(0,), (1, 2, 3)]
    fitting = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
    assert_same(trainer.fit(x, y, **fitting).history, plain.fit(x, y, **fitting).history)


def dense(*between: keras.layers.Layer, kind: type = keras.Model) -> keras.Model:
    inputs = keras.Input((6,))
    x = keras.layers.Dense(4)(inputs)
    for layer in between:
        x = layer(x)
    return kind(inputs, keras.layers.Dense(4)(x))


class TwoOptimizers(keras.Model):
    def train_step(self, batch: Any) -> Any:
        (x, y), variables = batch, self.trainable_variables
        with tf.GradientTape(persistent=True) as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        for optimizer, trained in (self.optimizer, variables[:2]), (self.other, variables[2:]):
            optimizer.apply(tape.gradient(loss, trained), trained)
        return {"loss": loss}


def with_own_step(kind: type = OwnStep) -> keras.Model:
    model = dense(kind=kind)
    model.other = keras.optimizers.SGD(0.1)
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize(
    ("model", "optimizer", "changed", "said"),
    [(dense, "sgd", {"stages": 1, "schedule": "gpipe"}, "schedule='gpipe' is the order in which stages run"),
     (lambda: dense(keras.layers.BatchNormalization()), "sgd", {"memory": "10B"}, ", which take the batch at once, stage "
         r"\d alone, .*; ask for more stages, more devices, or memory="),
     (dense, "sgd", {"collectives": "horovod", "parallelism": 2}, "stages runs by other collectives than 'horovod'"),
     (dense, Mixing(0.1), {}, "optimizer Mixing can't update the parameters of each stage by themselves"),
     (lambda: dense(keras.layers.BatchNormalization()), "sgd", {"micro_batches": 2}, "batch normalisation.*es=1"),
     (with_own_step, None, {}, "computes with its gradients.*without stages"),
     (lambda: with_own_step(TwoOptimizers), None, {}, "optimizer SGD .*, as one has none of them; use fewer stages")],
)  # fmt: skip
def test_what_stages_dont_allow_gets_a_sentence(model: Any, optimizer: Any, changed: dict[str, Any], said: str) -> None:
    where = {"parallelism": 4, "cluster": "v100-1x4", "collectives": "emulated", "verbose": 0}
    loss = "mse" if optimizer is not None else None
    given = {"stages": 2, "data": (np.zeros((8, 6)), np.zeros((8, 4))), **where, **changed}
    with pytest.raises(tensoropt.InputError, match=said):
        tensoropt.parallelize(model(), optimizer, loss, batch_size=8, **given)


class Shared(keras.Sequential):
    """A step of the first and the last layer, and one of all between."""

    def train_step(self, data: Any) -> dict[str, Any]:
        (x, y), weights = data, self.trainable_variables
        parts = [[*weights[:2], *weights[-2:]], weights[2:-2]]
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean(tf.square(self(x) - y))
        gradients = [tape.gradient(loss, part) for part in parts]
        self.optimizer.apply(gradients[0], parts[0])
        self.second.apply(gradients[1], parts[1])
        return {"loss": loss}


@pytest.mark.usefixtures("float64")
def test_optimizers_of_several_steps_have_parameters_in_each_stage() -> None:
    def model() -> keras.Model:
        keras.utils.set_random_seed(1)
        made = Shared([keras.Input((6,)), *(keras.layers.Dense(6, "tanh") for _ in range(4))])
        made.second = keras.optimizers.Adam(1e-2)
        made.compile(keras.optimizers.SGD(0.1))
        return made

    x = np.random.default_rng(1).normal(size=(8, 6))
    options = {"stages": 2, "micro_batches": 2, "cluster": "v100-1x2", "collectives": "emulated"}
    plain, trainer = model(), tensoropt.parallelize(model(), batch_size=8, data=(x, x), **options)
    for each in (plain, trainer):
        each.fit(x, x, batch_size=8, epochs=3, shuffle=False, verbose=0)
    assert_same_weights(trainer.get_weights(), plain.get_weights())
