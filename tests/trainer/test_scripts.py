"""What scripts do in and around steps of their own: it gives plain Keras's numbers, or is refused in a sentence."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.large import first
from helpers.switches import floats
from trainer.models import assert_same_weights
from trainer.own_steps import BATCH, SPLIT, compared, inputs, labelled

import tensoropt

EMULATED: Any = {"collectives": "emulated", "parallelism": 2, "cluster": "v100-1x2", "batch_size": BATCH}


def classes() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def model_of(step: Callable[..., Any], **compiled: Any) -> keras.Model:
    """A small classifier with this training step."""
    kind = type("Classifier", (keras.Sequential,), {"train_step": step})
    model: keras.Model = kind([keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(3)])
    model.compile(**{"optimizer": keras.optimizers.Adam(1e-2), "loss": classes(), **compiled})
    return model


def fitted(model: Any, x: Any, y: Any = None, **named: Any) -> Any:
    return model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0, **named).history


def sharpness_aware(model: Any, data: Any) -> dict[str, Any]:
    """Take gradients at weights that the step has moved, and move them back."""
    (x, y), weights = data, model.trainable_variables
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x, y, model(x, training=True))
    gradients = tape.gradient(loss, weights)
    norm = tf.linalg.global_norm(gradients)
    moves = [0.05 * each / norm for each in gradients]
    for weight, move in zip(weights, moves, strict=True):
        weight.assign_add(move)
    with tf.GradientTape() as tape:
        moved = model.compute_loss(x, y, model(x, training=True))
    gradients = tape.gradient(moved, weights)
    for weight, move in zip(weights, moves, strict=True):
        weight.assign_sub(move)
    model.optimizer.apply(gradients, weights)
    return {"loss": loss, "norm": norm}


def with_constants(model: Any, data: Any) -> dict[str, Any]:
    """Return numbers that follow from no value of a batch."""
    n_samples = tf.shape(data[0])[0]
    logs = keras.Sequential.train_step(model, data)
    return {**logs, "n": n_samples, "share": tf.cast(n_samples, tf.float64) / BATCH, "two": 2, "rank": tf.rank(data[0])}


@pytest.mark.parametrize("step", [sharpness_aware, with_constants])
def test_steps_give_plain_keras_numbers(step: Callable[..., Any]):
    (x, y), n = labelled(), 20 if step is with_constants else 16
    trainer = compared(lambda: model_of(step), lambda model: fitted(model, x[:n], y[:n]), **EMULATED)
    assert trainer.plan.n_collectives


def with_labels_or_without(model: Any, data: Any) -> dict[str, Any]:
    x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
    with tf.GradientTape() as tape:
        predicted = model(x, training=True)
        loss = tf.reduce_mean(tf.square(predicted)) if y is None else model.compute_loss(x, y, predicted)
    model.optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return {"loss": loss}


def unpacking(by_index: bool = False) -> Callable[..., Any]:
    def train_step(model: Any, data: Any) -> Any:
        if by_index:
            return keras.Sequential.train_step(model, (data[0], data[1]))
        x, y = data
        return keras.Sequential.train_step(model, (x, y))

    return train_step


def test_labels_that_a_step_of_its_own_may_use_are_not_left_out():
    x, y = labelled()
    trainer = tensoropt.parallelize(model_of(with_labels_or_without), **EMULATED)
    assert len(fitted(trainer, x)["loss"]) == 2
    said = r"batches \(test_scripts.py:\d+\) have y, without which the plan was made, and train_step of model .* may use it"
    for call in (lambda: fitted(trainer, x, y), lambda: trainer.train_on_batch(x[:BATCH], y[:BATCH])):
        with pytest.raises(tensoropt.InputError, match=said):
            call()
    assert trainer.predict(tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH), verbose=0).shape == (24, 3)


def test_a_prediction_before_labels_are_seen_is_refused():
    x, y = labelled()
    trainer = tensoropt.parallelize(model_of(unpacking()), **EMULATED)
    said = r"a prediction \(test_scripts.py:\d+\) comes before any batch to train on, and train_step of model .*labels"
    for predict in (trainer.predict, trainer.predict_on_batch):
        with pytest.raises(tensoropt.InputError, match=said):
            predict(x[:BATCH])
    fitted(trainer, x, y)
    assert trainer.predict_on_batch(x[:3]).shape == (3, 3)


@pytest.mark.parametrize("by_index", [False, True])
def test_a_step_that_takes_labels_says_so_of_data_without(by_index: bool):
    said = r"train_step \(test_scripts.py:\d+\) can't be called on batches of x alone, as .* data= .*: [^\x1b]*data=\(x, y\)"
    with pytest.raises(tensoropt.InputError, match=said):
        tensoropt.parallelize(model_of(unpacking(by_index)), data=inputs()[:BATCH], **EMULATED)


class Evaluated(keras.Model):
    """Layers of one name, of which training uses one; what is evaluated is counted by a metric that training doesn't use."""

    def __init__(self) -> None:
        super().__init__()
        self.trained, self.other = keras.layers.Dense(3, name="same"), keras.layers.Dense(3, name="same")
        self.trained.build((None, 6))
        self.other.build((None, 6))
        self.seen = keras.metrics.Mean(name="seen")
        self.build((None, 6))

    def build(self, shape: Any) -> None:
        self.built = True

    @property
    def metrics(self) -> list[Any]:
        return [*super().metrics, self.seen]

    def call(self, x: Any) -> Any:
        return self.other(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        (x, y), weights = data, self.trained.trainable_variables
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self.trained(x) + tf.stop_gradient(self.other(x)) * 0.0)
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}

    def test_step(self, data: Any) -> dict[str, Any]:
        self.seen.update_state(tf.reduce_mean(tf.abs(self(data[0]))))
        return {"seen": self.seen.result()}


class WithoutOther(Evaluated):
    def train_step(self, data: Any) -> dict[str, Any]:
        (x, y), weights = data, self.trained.trainable_variables
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self.trained(x))
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


@pytest.mark.parametrize("kind", first(1, [WithoutOther, Evaluated]))
def test_variables_that_training_does_not_use_are_shared_by_all_other_programs(kind: type, tmp_path: Path):
    """By evaluations of full batches and the smaller last one; they take assigned, loaded and exported values, too."""
    x, y = labelled()

    def use(model: Any) -> Any:
        def evaluated() -> Any:
            return [model.evaluate(x[:21], y[:21], batch_size=BATCH, verbose=0), model.predict(x[:3], verbose=0)]

        found = [*fitted(model, x, y, validation_data=(x[:21], y[:21]))["val_seen"], evaluated()]
        model.set_weights([each + 0.5 for each in model.get_weights()])
        found += [evaluated(), model.get_weights()]
        model.save_weights(tmp_path / "of.weights.h5")
        model.set_weights([0.0 * each for each in model.get_weights()])
        model.load_weights(tmp_path / "of.weights.h5")
        return [*found, evaluated()]

    def compiled() -> Any:
        model = kind()
        model.compile("sgd", classes())
        return model

    compared(compiled, use, **EMULATED)
    with floats("float64"):
        # Without a program that uses the other layer.
        model = compiled()
        trainer = tensoropt.parallelize(model, force=SPLIT, data=(x[:BATCH], y[:BATCH]), **EMULATED)
        weights = [each + 0.5 for each in trainer.get_weights()]
        trainer.set_weights(weights)
        trainer.save_weights(tmp_path / "of.weights.h5")
        trainer.set_weights([0.0 * each for each in weights])
        trainer.load_weights(tmp_path / "of.weights.h5")
        other = kind()
        trainer.export_to(other)
        assert all(map(np.array_equal, other.get_weights(), weights))
        assert all(map(np.array_equal, trainer.get_weights(), weights))


class Annealed(keras.Sequential):
    """A loss whose weight a callback sets, a queue of what was seen, and a threshold that only evaluations use."""

    scale = 1.0

    def __init__(self, layers: Any) -> None:
        super().__init__(layers)
        self.weight = tf.Variable(1.0, dtype=tf.float64, trainable=False)
        self.queue = tf.Variable(np.eye(3, 4), trainable=False)
        self.threshold = tf.Variable(0.1, dtype=tf.float64, trainable=False)
        self.head = self.layers[-1]

    def doubled(self, x: Any) -> Any:
        return 2.0 * self(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x, y, predicted) * self.weight + tf.reduce_mean(predicted @ self.queue) * self.scale
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self.queue.assign(tf.concat([self.queue[:, 2:], tf.transpose(predicted[:2])], 1))
        return {"loss": loss}

    def test_step(self, data: Any) -> dict[str, Any]:
        return {"above": tf.reduce_mean(tf.cast(self(data[0]) > self.threshold, tf.float64))}


class Annealing(keras.callbacks.Callback):
    """What callbacks do with the model: they assign to its variables, use its layers and call its methods."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Any] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.weight.assign(1.0 / (epoch + 1))
        self.model.threshold.assign(0.2 * epoch)
        self.model.queue[:, :1].assign(tf.zeros([3, 1], tf.float64))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.found += [np.array(self.model.doubled(inputs(2))), np.array(self.model.head.kernel), self.model.queue.numpy()]


def annealed() -> keras.Model:
    model = Annealed([keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(3)])
    model.compile("sgd", classes())
    return model


def annealed_use(model: Any) -> Any:
    x, y = labelled()
    callback = Annealing()
    found = fitted(model, x, y, validation_data=(x[:13], y[:13]), callbacks=[callback])
    model.queue.assign(tf.ones([3, 4], tf.float64))
    return [*found.values(), fitted(model, x, y)["loss"], *callback.found, model.queue.numpy(), model.get_weights()]


def test_variables_beside_the_model_are_the_same_in_the_script_and_on_the_ranks(tmp_path: Path):
    trainer = compared(annealed, annealed_use, **EMULATED)
    queue = trainer.queue.numpy()
    trainer.save(tmp_path / "of")
    trainer.queue.assign(0.0 * queue)
    trainer.load(tmp_path / "of")
    np.testing.assert_array_equal(trainer.queue.numpy(), queue)
    with pytest.raises(AttributeError, match="'Annealed' object has no attribute 'other'"):
        assert trainer.other


def test_an_attribute_that_the_captured_step_does_not_see_is_told_of(caplog: pytest.LogCaptureFixture):
    x, y = labelled()
    with floats("float64"):
        trainer = tensoropt.parallelize(annealed(), **EMULATED)
        trainer.scale = 2.0  # the step isn't captured yet
        assert trainer.inner.scale == 2.0
        fitted(trainer, x, y, callbacks=[keras.callbacks.EarlyStopping("loss")])
        assert not caplog.messages
        trainer.scale = 3.0
        trainer.scale = 4.0
    assert re.search(r"scale of model .* is set at test_scripts.py:\d+, after its training step was captured", caplog.text)
    assert len(caplog.messages) == 1


def test_eager_steps_are_refused():
    with pytest.raises(tensoropt.InputError, match=r"train_step \(test_scripts.py:\d+\), and is compiled with run_eagerly"):
        tensoropt.parallelize(model_of(unpacking(), run_eagerly=True), **EMULATED)


def test_weights_assigned_between_a_load_and_the_first_batch_are_taken(tmp_path: Path):
    x, y = labelled()
    first = tensoropt.parallelize(model_of(unpacking()), **EMULATED)
    fitted(first, x, y)
    first.save(tmp_path / "of")
    model = model_of(unpacking())
    trainer = tensoropt.parallelize(model, **EMULATED)
    trainer.load(tmp_path / "of")
    model.layers[0].bias.assign(np.ones(8))
    trainer.evaluate(x, y, verbose=0)
    expected = first.get_weights()
    expected[1] = np.ones(8)
    assert all(map(np.array_equal, trainer.get_weights(), expected))


def loop_step(length: int | None = None, optimizer: Any = None, **options: Any) -> tuple[keras.Model, Any, Any]:
    """A model, its step with a number among its arguments, and the step under a plan."""
    keras.utils.set_random_seed(1)
    extents = (6,) if length is None else (None, 6)
    layers = [keras.layers.Dense(8, "tanh"), *([keras.layers.GlobalAveragePooling1D()] if length else [])]
    model = keras.Sequential([keras.Input(extents), *layers, keras.layers.Dense(3)])
    optimizer, loss_of = optimizer or keras.optimizers.SGD(0.1), classes()

    def step(x: Any, y: Any, share: Any = 1.0) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True)) * share
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    return model, step, tensoropt.training_step(step, model=model, optimizer=optimizer, **EMULATED, **options)


def test_numbers_and_names_in_calls_of_a_training_step():
    """In float32, in which TensorFlow doesn't multiply by a float64."""
    x, y = inputs()[:BATCH].astype("float32"), labelled()[1][:BATCH]
    _, _, planned = loop_step()
    found = [planned(x, y, 0.5), planned(x, y=y, share=2.0), planned(x[:5], y[:5], share=0.25), planned(x, y)]
    _, plain, _ = loop_step()
    expected = [plain(x, y, 0.5), plain(x, y, 2.0), plain(x[:5], y[:5], 0.25), plain(x, y)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    for call, said in (
        (lambda: planned(x, y, True), "got True for 'share': its Python runs once"),
        (lambda: planned(x, z=y), r"the training step \(test_scripts.py:\d+\) can't be called so"),
    ):
        with pytest.raises(tensoropt.InputError, match=said):
            call()


def test_a_checkpoint_of_a_training_step_is_one_of_its_model_and_optimizer(tmp_path: Path):
    x, y = inputs().astype("float32"), labelled()[1]
    model, _, first = loop_step(optimizer=keras.optimizers.Adam(0.1))
    first(x[:8], y[:8])
    first.save(tmp_path / "of")
    expected = float(first(x[8:16], y[8:16]))
    # A model that is made later has other names.
    _, _, second = loop_step(optimizer=keras.optimizers.Adam(0.1), data=(x[:8], y[:8]))
    second.load(tmp_path)
    assert float(second(x[8:16], y[8:16])) == pytest.approx(expected, rel=1e-6)
    first.export()
    adam = keras.optimizers.Adam(0.1)
    plain, step, _ = loop_step(optimizer=adam)
    tensoropt.load_checkpoint(tmp_path, plain, adam)
    step(x[8:16], y[8:16])
    assert_same_weights(plain.get_weights(), model.get_weights(), 1e-5, 1e-7)


def test_a_longer_batch_with_a_number_beside_it_is_refused_by_the_longest_that_fits():
    _, _, planned = loop_step(length=2, memory="40KB")
    y = labelled()[1][:BATCH]
    planned(np.ones((BATCH, 2, 6), "float32"), y, 1.0)
    said = r"of x \[8, 900, 6\].* more than the limit of .* the longest that fits is x \[8, \d+, 6\], y \[8\], share \[\]"
    with pytest.raises(tensoropt.InputError, match=said):
        planned(np.ones((BATCH, 900, 6), "float32"), y, 1.0)


def test_variables_made_of_others_while_a_step_is_traced_are_refused():
    def train_step(model: Any, data: Any) -> Any:
        if not hasattr(model, "slow"):
            model.slow = [tf.Variable(each.value) for each in model.trainable_variables]
        return keras.Sequential.train_step(model, data)

    x, y = labelled()
    with pytest.raises(tensoropt.InputError, match=r"while a step is traced \(test_scripts.py:\d+\) take their first"):
        tensoropt.parallelize(model_of(train_step), data=(x[:BATCH], y[:BATCH]), **EMULATED)
