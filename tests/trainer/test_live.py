"""The trainer answers with what the ranks have, and what is assigned by way of it reaches them; else it is refused."""

from __future__ import annotations

import copy
import logging
import pickle
import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from trainer.models import assert_same_weights, batches, images, network, parallelized, plain

import tensoropt

pytestmark = [
    pytest.mark.filterwarnings("ignore:.shuffle=True. was passed"),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept"),  # of Keras's variables
]


def refuses(said: str):
    return pytest.raises(tensoropt.InputError, match=said)


@pytest.fixture(scope="module")
def model():
    return network()


@pytest.fixture(scope="module")
def optimizer():
    return keras.optimizers.Adam(1e-2)


@pytest.fixture(scope="module")
def accuracy():
    return keras.metrics.SparseCategoricalAccuracy(name="accuracy")


@pytest.fixture(scope="module")
def trainer(model, optimizer, accuracy):
    made = parallelized(model, optimizer, n_ranks=2, metrics=[accuracy])
    made.fit(batches(16), verbose=0)
    return made


def plainly(trainer) -> keras.Model:
    """A model with the trained values."""
    whole = network()
    trainer.export_to(whole)
    return whole


def test_reads_give_the_trained_values(trainer, model):
    whole, x = plainly(trainer), images(8)[0]
    assert not np.allclose(whole.get_weights()[0], model.get_weights()[0])
    np.testing.assert_allclose(trainer(x), whole(x), rtol=1e-5, atol=1e-5)
    assert_same_weights([np.asarray(each) for each in trainer.weights], whole.get_weights())
    assert_same_weights([each.numpy() for each in trainer.trainable_variables], whole.trainable_variables)
    assert len(trainer.variables) == len(model.variables)
    for layer, expected in zip(trainer.layers, whole.layers, strict=True):
        assert_same_weights(layer.get_weights(), expected.get_weights())
    dense = trainer.get_layer(trainer.layers[-1].name)
    assert isinstance(dense, keras.layers.Dense)
    np.testing.assert_allclose(tf.convert_to_tensor(dense.kernel), whole.layers[-1].kernel, rtol=1e-6)
    np.testing.assert_allclose(dense(np.ones([1, 8])), whole.layers[-1](np.ones([1, 8])), rtol=1e-5, atol=1e-5)


def test_assignments_reach_the_ranks():
    trainer, whole = parallelized(n_ranks=2), network()
    first, last = [np.ones((3, 3, 2, 4))], [np.full((8, 5), 0.5), np.arange(5.0)]
    for each in (trainer, whole):
        each.weights[0].assign(first[0])
        each.weights[1].assign_add(np.ones(4))
        each.layers[-1].set_weights(last)
    assert_same_weights(trainer.get_weights(), whole.get_weights())
    x = images(8)[0]
    np.testing.assert_allclose(trainer.predict(x, verbose=0), whole.predict(x, verbose=0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(trainer(x, training=True), whole(x, training=True), rtol=1e-5, atol=1e-5)
    assert_same_weights(trainer.get_weights(), whole.get_weights())  # the moving averages too


def test_what_was_captured_isnt_changed_without_a_word(trainer, model):
    line = r"\(test_live.py:\d+\)"
    with refuses(rf"can't be compiled again {line}.*tensoropt.parallelize"):
        trainer.compile("sgd", "mse")
    with refuses(rf"another optimizer can't be set {line}"):
        trainer.optimizer = keras.optimizers.SGD(0.1)
    with refuses(rf"weight_decay of trainer.optimizer can't be set {line}"):
        trainer.optimizer.weight_decay = 0.1
    with refuses(rf"trainable of layer '.*' can't be set by way of the trainer {line}"):
        trainer.layers[-1].trainable = False
    with refuses(rf"trainable of '.*' can't be set by way of the trainer {line}"):
        trainer.weights[0].trainable = False
    with refuses("can't be taken inside of a tf.function"):
        tf.function(lambda: trainer(images(8)[0]))()
    with refuses("no variable by which a gradient can be taken"), tf.GradientTape() as tape:
        tape.gradient(tf.reduce_sum(trainer(images(8)[0])), trainer.trainable_variables)
    before = trainer.get_weights()
    model.layers[-1].trainable = False
    with refuses("/kernel' isn't trainable any more"):
        trainer.fit(batches(8), verbose=0)
    with refuses("/kernel' isn't trainable any more"):
        trainer.train_on_batch(*images(8))
    model.layers[-1].trainable = True
    assert_same_weights(trainer.get_weights(), before, 0)


def test_the_learning_rate_is_assigned_on_all_ranks(trainer):
    before = float(trainer.optimizer.learning_rate)
    trainer.optimizer.learning_rate.assign(before / 2)
    assert [float(on.copy.learning_rate) for on in trainer.ranks.optimizer._on] == [before / 2] * 2
    trainer.optimizer.learning_rate = before


FILE = str(Path(tempfile.gettempdir()) / "tensoropt-never-written.weights.h5")
READS = {
    "predict": lambda model: model.predict(images(8)[0], verbose=0),
    "call": lambda model: model(images(8)[0]),
    "get_weights": lambda model: model.get_weights(),
    "numpy": lambda model: model.layers[-1].kernel.numpy(),
    "save": lambda model: model.save_weights(FILE),
    "set_weights": lambda model: model.layers[-1].set_weights([np.ones((8, 5)), np.ones(5)]),
}


@pytest.mark.parametrize("what", READS)
def test_callbacks_that_take_the_model_for_the_trainer_are_told(trainer, model, what):
    model.predict(images(8)[0], verbose=0)  # a function that is traced before
    callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: READS[what](model))
    verb = "assigned to" if what == "set_weights" else "read"
    with refuses(rf"of model '.*' is {verb} at test_live.py:\d+ while its trainer runs.*self.model"):
        trainer.fit(batches(16), verbose=0, callbacks=[callback])


def test_callbacks_see_the_trained_values(trainer, model):
    seen = []

    class Own(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append([np.asarray(each) for each in self.model.weights])
            seen.append(self.model.get_weights())
            trainer.export_to(model)
            seen.append(model.get_weights())

    trainer.fit(batches(16), verbose=0, callbacks=[Own()])
    assert_same_weights(seen[0], seen[1], 0)
    assert_same_weights(seen[0], seen[2], 0)
    assert_same_weights(seen[0], trainer.get_weights(), 0)


def set_rate(optimizer, accuracy):
    optimizer.learning_rate = 0.0


OBJECTS = {
    "set the rate": (set_rate, "learning_rate' of the optimizer Adam .* is assigned to", "self.model.optimizer"),
    "iterations": (lambda o, m: int(o.iterations), "iteration' of the optimizer Adam .* is read", "trainer.optimizer"),
    "result": (lambda o, m: float(m.result()), "' of the metrics .* is read", "from logs"),
    "reset": (lambda o, m: m.reset_state(), "' of the metrics .* is assigned to", "from logs"),
}


@pytest.mark.parametrize("what", OBJECTS)
def test_callbacks_that_take_the_scripts_optimizer_or_metric_are_told(trainer, optimizer, accuracy, what):
    action, said, instead = OBJECTS[what]
    callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: action(optimizer, accuracy))
    with refuses(rf"{said} at test_live.py:\d+ while its trainer runs.*{instead}"):
        trainer.fit(batches(16), verbose=0, callbacks=[callback])


def test_what_the_scripts_own_objects_answer_beside_the_trainer_is_warned_of(trainer, optimizer, accuracy, caplog):
    trainer.fit(batches(16), verbose=0)
    for watch in trainer.live.other_watches:
        watch._said.clear()
    with caplog.at_level(logging.WARNING, "tensoropt"):
        assert int(optimizer.iterations) == 0
        optimizer.learning_rate = 0.01
        assert float(accuracy.result()) == 0.0
        accuracy.reset_state()
        accuracy.update_state([1], [[0.0, 1.0]])
        assert float(accuracy.result()) == 1.0  # the user's own use of it
        trainer.evaluate(batches(16), verbose=0)
    iterations, rate, metric = [record.getMessage() for record in caplog.records]
    assert "iteration' of the optimizer Adam that was given to parallelize is read at test_live.py" in iterations
    assert "learning_rate' of the optimizer Adam that was given to parallelize is assigned to at test_live.py" in rate
    assert "' of the metrics that were given to parallelize is read at test_live.py" in metric


def change_in_another_way(trainer, model):
    trainer.trainable = False


def write_as_tensorflow_does(trainer, model):
    tf.train.Checkpoint(model=trainer).save(FILE)


REFUSED = {
    "quantize": (lambda t, m: t.quantize("int8"), r"quantize can't be called on .*export_to\(model\), quantize on"),
    "add_weight": (lambda t, m: t.add_weight(shape=[1]), "add_weight can't be called"),
    "state": (lambda t, m: t.set_state_tree({}), "set_state_tree can't be called .*trainer.set_weights"),
    "train_step": (lambda t, m: t.train_step(images(8)), "train_step can't be called .*trainer.train_on_batch"),
    "trainable": (change_in_another_way, "trainable of the trainer can't be set"),
    "checkpoint": (write_as_tensorflow_does, "by tf.train.Checkpoint .*trainer.save.*self.model.save.*trainer.export_to"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_keras_methods_that_would_change_what_was_captured_are_refused(trainer, model, what):
    action, said = REFUSED[what]
    before = [layer.dtype_policy.name for layer in model.layers], len(model.variables)
    with refuses(said):
        action(trainer, model)
    assert before == ([layer.dtype_policy.name for layer in model.layers], len(model.variables))


def test_variables_are_copied_and_pickled_as_keras_ones(trainer, model):
    for variable in (model.weights[0], trainer.weights[0]):
        for copied in (copy.deepcopy(variable), pickle.loads(pickle.dumps(variable))):
            assert type(copied) is keras.Variable
            assert copied.path == variable.path
            np.testing.assert_array_equal(copied.numpy(), variable.numpy())
            copied.assign(np.zeros_like(copied))
    assert np.any(model.weights[0].numpy())


def test_a_model_goes_on_by_itself_after_its_export_without_a_word(caplog, tmp_path):
    model, other = plain(), []
    x = images(8)[0]
    trainer = parallelized(model, n_ranks=2)
    model.predict(x, verbose=0)  # a function that is traced before
    with caplog.at_level(logging.WARNING, "tensoropt"):
        trainer.train_on_batch(*images(8))
        expected = trainer.predict(x, verbose=0)
        trainer.export(tmp_path / "saved", verbose=False)
        saved = tf.saved_model.load(str(tmp_path / "saved"))
        np.testing.assert_allclose(saved.serve(x), expected, rtol=1e-5, atol=1e-5)
        trainer.export_to(model)
        np.testing.assert_allclose(model.predict(x, verbose=0), expected, rtol=1e-5, atol=1e-5)
        other.append(parallelized(model, n_ranks=2))
        other[0].fit(batches(8), verbose=0)
        other[0].export_to(model)
        model.fit(batches(8), verbose=0)
        assert not caplog.records
        trainer.train_on_batch(*images(8))
        model.predict(x, verbose=0)
    assigned, read = [record.getMessage() for record in caplog.records]
    assert "is assigned to at test_live.py" in assigned
    assert "is read at test_live.py" in read


def test_a_model_that_is_read_or_assigned_beside_its_trainer_is_warned_of_once(caplog):
    model = network()
    trainer = parallelized(model, n_ranks=2)
    with caplog.at_level(logging.WARNING, "tensoropt"):
        model.get_weights()  # what the trainer starts from
        model.set_weights([np.ones_like(each) for each in model.get_weights()])
        trainer.set_weights(model.get_weights())
        trainer.export_to(model)
        trainer.train_on_batch(*images(8))
        trainer.export_to(model)
        model.get_weights()
        assert not caplog.records  # all were settled before they mattered
        for _ in range(2):
            model.set_weights([np.ones_like(each) for each in model.get_weights()])
        assert not caplog.records
        trainer.train_on_batch(*images(8))
        for _ in range(2):
            model(images(8)[0])
    assigned, read = [record.getMessage() for record in caplog.records]
    assert "is assigned to at test_live.py" in assigned
    assert "is read at test_live.py" in read
    assert "trainer.export_to(model)" in read


LINE = r"set_weights \(test_live.py:\d+\)"
WRONG = {
    "too few": (lambda w: w[:-1], "got 8 arrays, expected 9 for model '.*'"),
    "too many": (lambda w: [*w, w[0]], "got 10 arrays, expected 9"),
    "none": (lambda w: None, "takes a list of 9 arrays for model '.*', got None"),
    "flat": (lambda w: [*w[:-1], w[-1][0]], r"at place 8, for '.*bias' of model '.*', shape \[\], expected \[5\]"),
    "wide": (lambda w: [*w[:-2], np.ones((8, 6)), w[-1]], r"at place 7, for '.*', shape \[8, 6\], expected \[8, 5\]"),
    "a None": (lambda w: [*w[:-1], None], "at place 8, for '.*' of model '.*', type object, expected float32"),
    "text": (lambda w: [*w[:-1], np.array(["a"] * 5)], "at place 8, for '.*' of model '.*', type <U1, expected float32"),
    "ragged": (lambda w: [*w[:-1], [[1], [1, 2]]], r"at place 8, .*, \[\[1\], \[1, 2\]\], expected an array of numbers"),
}


@pytest.mark.parametrize("what", WRONG)
def test_weights_that_dont_fit_change_nothing(trainer, what):
    change, said = WRONG[what]
    before = trainer.get_weights()
    with refuses(f"{LINE} .*{said}"):
        trainer.set_weights(change([each + 1 for each in before]))
    assert_same_weights(trainer.get_weights(), before, 0)
