"""The model's variables are the trained ones: what is read of them and what is assigned to them, by whatever way, counts."""

from __future__ import annotations

import copy
import pickle
import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from trainer.models import METRICS, assert_same_weights, batches, images, loss, network, parallelized, plain

import tensoropt


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
    assert made.plan.n_split_operators
    return made


def plainly(trainer) -> keras.Model:
    """Another model with the trained values."""
    whole = network()
    trainer.export_to(whole)
    return whole


def test_reads_give_the_trained_values(trainer, model):
    whole, x = plainly(trainer), images(8)[0]
    assert not np.allclose(whole.get_weights()[0], network().get_weights()[0])
    for each in (trainer, model):
        np.testing.assert_allclose(each(x), whole(x), rtol=1e-5, atol=1e-5)
        assert_same_weights([np.asarray(each) for each in each.weights], whole.get_weights())
        assert_same_weights([each.numpy() for each in each.trainable_variables], whole.trainable_variables)
        for layer, expected in zip(each.layers, whole.layers, strict=True):
            assert_same_weights(layer.get_weights(), expected.get_weights())
        dense = each.get_layer(each.layers[-1].name)
        assert isinstance(dense, keras.layers.Dense)
        np.testing.assert_allclose(tf.convert_to_tensor(dense.kernel), whole.layers[-1].kernel, rtol=1e-6)


def by_function(model):
    kernel = model.layers[-1].kernel.value
    return tf.function(lambda: kernel.assign(kernel * 0.5))


def by_checkpoint(model):
    other, path = network(), f"{tempfile.mkdtemp()}/of"
    other.set_weights([0.3 * np.ones_like(each) for each in other.get_weights()])
    tf.train.Checkpoint(model=other).write(path)
    return lambda: tf.train.Checkpoint(model=model).restore(path)


def by_file(model):
    other, path = plain(keras.optimizers.SGD(0.1)), f"{tempfile.mkdtemp()}/of.weights.h5"
    other.optimizer.build(other.trainable_variables)
    other.set_weights([0.3 * np.ones_like(each) for each in other.get_weights()])
    other.save_weights(path)
    return lambda: model.load_weights(path)


def by_hand(model):
    """An update that TensorFlow's tapes and operators make."""

    def step():
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(model(images(8)[0]) ** 2)
        for each, gradient in zip(model.trainable_variables, tape.gradient(value, model.trainable_variables), strict=True):
            tf.raw_ops.ResourceApplyGradientDescent(var=each.value.handle, alpha=0.5, delta=gradient)

    return step


def by_halves(model):
    """Averages that are swapped in and out, of which some operate in place."""

    def step():
        kept = model.get_weights()
        model.set_weights([0.0 * each for each in kept])
        model.set_weights(kept)
        model.layers[-1].bias.assign_add(np.ones(5))
        model.layers[-1].kernel.value.scatter_nd_update([[1]], [np.ones(5)])

    return step


WAYS = {
    "set_weights": lambda m: lambda: m.set_weights([np.full_like(each, 0.3) for each in m.get_weights()]),
    "layer": lambda m: lambda: m.layers[-1].set_weights([np.full((8, 5), 0.5), np.arange(5.0)]),
    "bias": lambda m: lambda: m.layers[-1].bias.assign(np.full(5, 0.3)),
    "value": lambda m: lambda: m.weights[0]._value.assign_add(tf.ones((3, 3, 2, 4))),
    "traced before": by_function,
    "checkpoint": by_checkpoint,
    "file": by_file,
    "by hand": by_hand,
    "by halves": by_halves,
    "call": lambda m: lambda: m(images(8)[0], training=True),  # moving averages
    "its own steps": lambda m: lambda: m.predict(images(8)[0], verbose=0),
}


def test_training_goes_on_from_what_is_assigned():
    model, whole = network(), plain(keras.optimizers.SGD(0.1))
    ways = {way: [make(each) for each in (model, whole)] for way, make in WAYS.items()}
    trainer = parallelized(model, keras.optimizers.SGD(0.1), n_ranks=2)
    for way, assign in [*ways.items()] * 2:
        losses = [each.train_on_batch(*images(8))[0] for each in (trainer, whole)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-4), f"before {way}"
        for each in assign:
            each()
        assert_same_weights(model.get_weights(), whole.get_weights(), 1e-4)
        np.testing.assert_allclose(model.predict_on_batch(images(8)[0]), whole.predict_on_batch(images(8)[0]), atol=1e-4)
        assert_same_weights(trainer.get_weights(), whole.get_weights(), 1e-4)
        assert trainer.test_on_batch(*images(8)) == pytest.approx(whole.test_on_batch(*images(8)), rel=1e-4), f"after {way}"


def test_what_nobody_touches_costs_nothing(trainer, monkeypatch):
    trainer.train_on_batch(*images(8))
    monkeypatch.setattr(type(trainer.ranks), "value", None)
    monkeypatch.setattr(type(trainer.ranks), "assign_same", None)
    trainer.train_on_batch(*images(8))


def rates(optimizer):
    optimizer.learning_rate = 0.02
    optimizer.beta_1, optimizer.epsilon = 0.5, 1e-3


def decays(optimizer):
    optimizer.weight_decay = 0.3


def clips(optimizer):
    optimizer.clipnorm = 0.1


def schedules(optimizer):
    optimizer.learning_rate = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)


def test_the_next_step_takes_the_optimizers_attributes():
    ours, own = (keras.optimizers.AdamW(1e-2, weight_decay=0.01) for _ in range(2))
    trainer, whole = parallelized(optimizer=ours, n_ranks=2), plain(own)
    for set_them in (None, rates, decays, clips, schedules):
        if set_them:
            set_them(ours if set_them in (clips, schedules) else trainer.optimizer)
            set_them(own)
            whole.make_train_function(force=True)
        for each in (trainer, whole):
            each.train_on_batch(*images(8))
        assert int(ours.iterations) == int(own.iterations) == trainer.optimizer.iterations
        assert float(ours.learning_rate) == pytest.approx(float(own.learning_rate))
        assert_same_weights(trainer.get_weights(), whole.get_weights(), 1e-4)


def test_what_an_optimizer_would_keep_otherwise_is_refused():
    optimizer = keras.optimizers.SGD(0.1)
    trainer = parallelized(optimizer=optimizer, n_ranks=2)
    trainer.train_on_batch(*images(8))
    optimizer.momentum = 0.9
    with refuses(r"momentum of optimizer SGD was set after a plan was made \(test_live.py:\d+\).*parallelize again"):
        trainer.train_on_batch(*images(8))


@pytest.mark.parametrize("joint", [False, True], ids=["two optimizers", "one optimizer"])
def test_trainers_share_the_layers_of_their_models(joint):
    """Under plans that place them differently, and by training steps; an optimizer's state is one, too."""

    def losses(wrap, step_of):
        keras.utils.set_random_seed(1)
        encoder = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "tanh")])
        inputs = keras.Input((6,))
        models = [keras.Model(inputs, keras.layers.Dense(n)(encoder(inputs))) for n in (6, 1)]
        adams = [keras.optimizers.Adam(0.02) for _ in models]
        for each, adam in zip(models, adams, strict=True):
            each.compile(adam, "mse", jit_compile=False)
        x = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)

        def step(x):
            with tf.GradientTape() as tape:
                value = tf.reduce_mean((models[0](x) - x) ** 2)
            adams[0].apply(tape.gradient(value, models[0].trainable_variables), models[0].trainable_variables)
            return value

        def other(x):
            return step(2.0 * x)

        if joint:
            adams[0].build(models[0].trainable_variables)
            calls = [step_of(each, models[0], adams[0]) for each in (step, other)]
            return [float(np.asarray(call(x))) for _ in range(3) for call in calls] + [encoder.get_weights()[0].sum()]
        auto, head = (wrap(each, n) for each, n in zip(models, (2, 3), strict=True))
        found = [
            value
            for _ in range(3)
            for value in (auto.train_on_batch(x, x), head.train_on_batch(x, x[:, :1]), np.sum(encoder(x)))
        ]
        return [*found, *(np.sum(each) for each in encoder.get_weights())]

    emulated = {"batch_size": 8, "collectives": "emulated", "cluster": "v100-1x4"}

    def parallel(model, n):
        return tensoropt.parallelize(model, parallelism=n, **emulated)

    expected = losses(lambda each, n: each, lambda step, model, optimizer: tf.function(step))
    got = losses(parallel, lambda step, model, adam: tensoropt.training_step(step, model=model, optimizer=adam, **emulated))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_values_outlive_their_trainer():
    model, whole = network(), plain(keras.optimizers.SGD(0.1))
    for _ in range(2):
        trainer = parallelized(model, keras.optimizers.SGD(0.1), n_ranks=2)
        trainer.train_on_batch(*images(8))
        whole.train_on_batch(*images(8))
        del trainer
    assert_same_weights(model.get_weights(), whole.get_weights())
    model.compile("sgd", loss(), metrics=METRICS)
    model.fit(batches(8), verbose=0)


def test_what_was_captured_isnt_changed_without_a_word(trainer, model):
    line = r"\(test_live.py:\d+\)"
    with refuses(rf"compile can't be called on .* {line}.*parallelize the model again"):
        trainer.compile("sgd", "mse")
    with refuses(rf"another optimizer can't be set {line}"):
        trainer.optimizer = keras.optimizers.SGD(0.1)
    before = trainer.get_weights()
    for layer in (trainer.layers[-1], model.layers[-1]):
        layer.trainable = False
        with refuses("/kernel' isn't trainable any more"):
            trainer.fit(batches(8), verbose=0)
        with refuses("/kernel' isn't trainable any more"):
            trainer.train_on_batch(*images(8))
        layer.trainable = True
    assert_same_weights(trainer.get_weights(), before, 0)
    dataset = tf.data.Dataset.from_tensor_slices(images(8)[0]).batch(8)
    with refuses(rf"a dataset reads '.*' {line}, which a trainer changes"):
        dataset.map(model)


def test_gradients_and_functions_see_the_trained_values(trainer):
    whole, (x, _) = plainly(trainer), images(8)
    found = []
    for each in (trainer, whole):
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(tf.function(each)(x) ** 2)
        found.append(tape.gradient(value, each.trainable_variables))
    assert_same_weights(*found, 1e-3)


SEEN = {
    "predict": lambda model: model.predict(images(8)[0], verbose=0),
    "call": lambda model: np.asarray(model(images(8)[0])),
    "get_weights": lambda model: model.get_weights()[-2],
    "numpy": lambda model: model.layers[-1].kernel.numpy(),
}


def test_callbacks_may_take_the_model_the_optimizer_and_the_metrics_for_those_of_the_trainer(
    trainer, model, optimizer, accuracy
):
    model.predict(images(8)[0], verbose=0)  # a function that is traced before
    seen = []

    def on_epoch_end(epoch, logs):
        for read in SEEN.values():
            np.testing.assert_allclose(read(model), read(trainer), rtol=1e-5, atol=1e-5)
        model.layers[-1].bias.assign(np.arange(5.0))
        np.testing.assert_array_equal(trainer.get_weights()[-1], np.arange(5.0))
        seen.append(int(optimizer.iterations) == trainer.optimizer.iterations)
        seen.append(float(accuracy.result()) == logs["accuracy"])
        optimizer.learning_rate = 0.0

    before = float(optimizer.learning_rate)
    trainer.fit(batches(16), verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=on_epoch_end)])
    kept = trainer.get_weights()
    trainer.train_on_batch(*images(8))
    assert_same_weights(trainer.get_weights()[-2:], kept[-2:], 0)
    optimizer.learning_rate.assign(before)
    trainer.train_on_batch(*images(8))
    assert not np.array_equal(trainer.get_weights()[-2], kept[-2])
    assert [float(on.copy.learning_rate) for on in trainer.ranks.optimizer.running[0]._on] == [before] * 2
    assert seen == [True, True]
    accuracy.reset_state()
    accuracy.update_state([1], [[0.0, 1.0]])
    assert float(accuracy.result()) == 1.0  # the user's own use of it


def write_as_tensorflow_does(trainer, model):
    tf.train.Checkpoint(model=trainer).save(str(Path(tempfile.gettempdir()) / "tensoropt-never-written"))


def change_in_another_way(trainer, model):
    trainer.trainable = False


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
    variable = model.weights[0]
    for copied in (copy.deepcopy(variable), pickle.loads(pickle.dumps(variable))):
        assert type(copied) is keras.Variable and copied.path == variable.path
        np.testing.assert_array_equal(copied.numpy(), variable.numpy())
        copied.assign(np.zeros_like(copied))
    assert np.any(model.weights[0].numpy())


def test_a_model_and_what_is_exported_of_it_go_on_by_themselves(trainer, model, tmp_path):
    x = images(8)[0]
    expected = trainer.predict(x, verbose=0)
    trainer.export(tmp_path / "saved", verbose=False)
    saved = tf.saved_model.load(str(tmp_path / "saved"))
    np.testing.assert_allclose(saved.serve(x), expected, rtol=1e-5, atol=1e-5)
    copied = keras.models.clone_model(model)
    copied.set_weights(model.get_weights())
    np.testing.assert_allclose(copied.predict(x, verbose=0), expected, rtol=1e-5, atol=1e-5)


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
