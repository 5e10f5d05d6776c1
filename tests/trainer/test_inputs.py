"""Data and labels in many forms, sequence losses, and the sentences for what a trainer can't take."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.large import first
from helpers.mpirun import run_ranks
from trainer.models import BATCH, CLASSES, assert_same_weights, images, parallelized

import tensoropt

WORKER = Path(__file__).with_name("inputs_worker.py")
RANKS = {"collectives": "emulated", "parallelism": 2, "cluster": "v100-1x2"}


def refuses(said: str) -> Any:
    """The user's own line is HERE."""
    return pytest.raises(tensoropt.InputError, match=said.replace("HERE", r"\(test_inputs.py:\d+\)"))


def small(optimizer: Any = "sgd", loss: Any = "mse", model: keras.Model | None = None, **options: Any) -> Any:
    """A trainer of a dense layer over five numbers."""
    model = model or keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, name="dense")])
    return tensoropt.parallelize(model, optimizer, loss, batch_size=BATCH, **{**RANKS, **options})


@pytest.fixture(scope="module")
def trainer():
    return small()


def fit_as_plain(trained: Any, optimizer: Any, loss: Any, *data: Any, **how: Any) -> None:
    """Fit a trainer, and a copy of its model by plain Keras, and compare losses and weights."""
    expected = keras.models.clone_model(trained.inner)
    expected.set_weights(trained.get_weights())
    expected.compile(optimizer, loss, jit_compile=False)
    given = {"epochs": 2, "shuffle": False, "verbose": 0, **how}
    ours, theirs = (each.fit(*data, **given).history["loss"] for each in (trained, expected))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    assert_same_weights(trained.get_weights(), expected.get_weights())


X = np.random.default_rng(0).normal(size=(2 * BATCH, 5)).astype(np.float32)
Y = np.eye(4, dtype=np.float32)[np.arange(2 * BATCH) % 4]


# Sequence losses


@pytest.mark.parametrize("n_ranks", first(1, [2, 3]))
def test_ctc_trains_as_on_one_device(n_ranks):
    """Labels of several lengths; the loop over time splits the batch."""
    rng = np.random.default_rng(0)
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((12, 5)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(6)])
    x = rng.normal(size=(18, 12, 5)).astype(np.float32)
    labels = rng.integers(1, 6, size=(18, 4)).astype(np.int32)
    labels[::3, 2:] = 0
    data = tf.data.Dataset.from_tensor_slices((x, labels)).batch(6)
    where = {**RANKS, "parallelism": n_ranks, "cluster": f"v100-1x{n_ranks}"}
    loops = "compile_loss/ctc/ctc_loss_dense/While"
    force = {loops: {"d5": n_ranks}, f"{loops}_1": {"d8": n_ranks}}
    ctc = keras.losses.CTC()
    trained = tensoropt.parallelize(model, keras.optimizers.SGD(0.1), ctc, batch_size=6, data=data, force=force, **where)
    assert sum(op.type == "Loop" and bool(op.config.used_axes) for op in trained.plan.operators) == 2
    fit_as_plain(trained, keras.optimizers.SGD(0.1), keras.losses.CTC(), data)


def test_ctc_of_a_captured_function_and_of_a_recorded_model():
    """A function is captured; a recording refuses with the user's line."""
    rng = np.random.default_rng(0)
    w = tf.Variable(rng.normal(size=(5, 6)).astype(np.float32))
    x, y = rng.normal(size=(BATCH, 9, 5)).astype(np.float32), rng.integers(1, 6, size=(BATCH, 3)).astype(np.int32)

    def loss(x: Any, y: Any, w: Any) -> Any:
        logits, lengths = tf.matmul(x, tf.tile(w[None], [BATCH, 1, 1])), (tf.fill([BATCH], 3), tf.fill([BATCH], 9))
        return tf.reduce_mean(tf.nn.ctc_loss(y, logits, *lengths, logits_time_major=False, blank_index=0))

    with tf.GradientTape() as tape:
        expected = loss(x, y, w)
    trained = w.numpy() - tape.gradient(expected, w).numpy()
    captured = tensoropt.capture(lambda x, y: loss(x, y, w), [tf.TensorSpec(x.shape), tf.TensorSpec(y.shape, tf.int32)])
    trainer = tensoropt.parallelize(captured, keras.optimizers.SGD(1.0), **RANKS)
    assert trainer.step(x, y) == pytest.approx(float(expected), rel=1e-5)
    trainer.export()
    np.testing.assert_allclose(w.numpy(), trained, rtol=1e-5, atol=1e-6)
    session = tensoropt.init("v100-1x2", seed=1)
    try:
        px, py = tensoropt.placeholder("float32", x.shape), tensoropt.placeholder("int32", y.shape)
        tensoropt.GradientDescentOptimizer(0.1).minimize(loss(px, py, tensoropt.get_variable("w", [5, 6])))
        with refuses("the loop '.*' HERE calls a function by its name, as tf.nn.ctc_loss does, which can't be recorded"):
            tensoropt.find_strategy()
    finally:
        session._recording.close()


# Data and labels


def test_arrays_tell_what_a_batch_is():
    """Even of a model whose inputs have no known length."""
    model = keras.Sequential([keras.Input((None, 5)), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(4)])
    x = np.random.default_rng(1).normal(size=(BATCH, 7, 5)).astype(np.float32)
    trained = small(keras.optimizers.SGD(0.1), model=model, data=(x, Y[:BATCH]))
    fit_as_plain(trained, keras.optimizers.SGD(0.1), "mse", x, Y[:BATCH])
    assert small(labels=Y).fit(X, Y, verbose=0).history["loss"]


def ragged(n: int = 2 * BATCH) -> tf.RaggedTensor:
    return tf.RaggedTensor.from_row_lengths(X[:n].reshape(-1), [5] * n)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"loss": None}, r"parallelize HERE has no loss=, and the model adds none by add_loss; give one"),
        ({"loss": "xent"}, r"parallelize HERE has loss='xent', which Keras doesn't know; give one of"),
        ({"loss": 3}, "has loss=3, which Keras doesn't know"),
        ({"loss": ["mse", "mse"]}, "loss= .* has 2 losses, expected one for each of the model's 1 results"),
        ({"loss": {"other": "mse"}}, "loss= .* has one for 'other', expected one for each of the model's 1 results"),
        ({"metrics": ["mean_squared_eror"]}, "has metrics='mean_squared_eror', which Keras doesn't know; .*squared_error"),
        ({"steps_per_execution": 4}, "has no argument 'steps_per_execution': ranks run one step at a time"),
        ({"epochs": 4}, r"parallelize HERE has no argument 'epochs': it takes model, optimizer, loss"),
        ({"labels": Y, "loss": lambda y, p: tf.reshape(y, [BATCH, 2]) - p[:, :2]}, r"the loss HERE can't be computed for "
         r"labels of shape \[8, 4\] of float32: .*Cannot reshape a tensor with 32 elements.*labels=tf.TensorSpec\(shape, "
         r"dtype\)\), or data= with a dataset or arrays"),
        ({"labels": Y, "loss": keras.losses.CTC()}, r"the loss .* can't be computed for labels of shape \[8, 4\].*data="),
        ({"labels": (8, 4)}, r"labels= HERE takes a tf.TensorSpec\(shape, dtype\) of a batch of labels, .*8"),
        ({"data": X}, r"the loss HERE can't be computed without labels: .*; give a tuple \(x, y\)"),
        ({"data": iter([X])}, r"data= HERE takes a tf.data.Dataset of batches, or arrays .*, got <list_iter"),
        ({"data": (ragged(), Y)}, r"x of data= HERE is ragged; expected dense tensors.*x.to_tensor\(shape"),
        ({"data": (tf.sparse.from_dense(X), Y)}, "x of data= .* is sparse; expected dense tensors.*tf.sparse.to_dense"),
        ({"data": tf.data.Dataset.from_tensors(X[0]).padded_batch(4, [None])}, r"x of data= .* has shape \(None, None\);"),
    ],
)  # fmt: skip
def test_what_parallelize_cant_take(options: dict[str, Any], said: str):
    with refuses(said):
        small(**options)


def test_a_loss_of_the_models_own_that_looks_at_labels_that_arent_there():
    class Own(keras.Sequential):
        def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None, training: bool = True) -> Any:
            return tf.reduce_mean(y_pred) / y.shape[0]

    model = Own([keras.Input((5,)), keras.layers.Dense(4)])
    model.compile("sgd")
    with refuses("the loss HERE can't be computed without labels: 'NoneType' object has no attribute 'shape'. Batches have"):
        tensoropt.parallelize(model, batch_size=BATCH, data=X, **RANKS)


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda t: t.fit(ragged(), Y, verbose=0), r"x of a batch HERE is ragged; expected dense tensors"),
        (lambda t: t.predict(ragged(), verbose=0), r"x of a batch HERE is ragged; expected dense tensors"),
        (lambda t: t.train_on_batch(ragged(8), Y[:8]), r"x of a batch HERE is ragged; expected dense"),
        (lambda t: t.fit(X, verbose=0), r"batches HERE have no y, for which the plan was made; give \(x, y\)"),
        (lambda t: t.load(None), r"load HERE takes the path of a file, got None"),
        (lambda t: t.save(3), r"save HERE takes the path of a file, got 3"),
        (lambda t: setattr(t, "steps_per_execution", 4), "steps_per_execution of the trainer can't be set"),
    ],
)
def test_what_a_trainer_cant_take(trainer, use: Callable[[Any], Any], said: str):
    with refuses(said):
        use(trainer)


@pytest.mark.parametrize(("label", "split"), first(1, [(CLASSES, "c"), (-1, None), (CLASSES, None), (-1, "c")]))
def test_labels_that_are_no_classes(label, split):
    """Such labels would be taken for another rank's where classes are split."""
    x, y = images(BATCH)
    y[3] = label
    force = {"SparseSoftmaxCrossEntropyWithLogits": {split or "b0": 2}} if split else None
    with refuses(r"SparseSoftmaxCrossEntropyWithLogits '.*' \(models.py:\d+\) can't take a value of this batch HERE"):
        parallelized(n_ranks=2, force=force).fit(x, y, verbose=0)


def test_rows_that_an_embedding_doesnt_have():
    model = keras.Sequential([keras.Input((6,), dtype="int32"), keras.layers.Embedding(12, 8), keras.layers.Flatten()])
    model.add(keras.layers.Dense(4))
    indices = np.arange(6 * BATCH).reshape(BATCH, 6) % 12
    trained = small(model=model, force={"GatherV2": {"rows": 2}})
    trained.fit(indices, Y[:BATCH], verbose=0)
    indices[2, 2] = 12
    with refuses(r"GatherV2 '.*' HERE can't take a value of this batch .*outside of 0 to one less than 12"):
        trained.fit(indices, Y[:BATCH], verbose=0)


# Layers


def ctc_batch_cost(y, p):
    return keras.src.legacy.backend.ctc_batch_cost(y, p, tf.fill([BATCH, 1], 6), tf.fill([BATCH, 1], 3))


class Ones(keras.layers.Layer):
    """A layer with a weight of which only the shape counts."""

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], 3), name="w")

    def call(self, x):
        return keras.ops.concatenate([x, keras.ops.ones_like(x @ self.w)], -1)


@pytest.mark.filterwarnings("ignore:Gradients do not exist for variables")
@pytest.mark.parametrize("of", first(3, ["hinge", "ctc", "ones", "squared_hinge"]))
def test_values_and_shapes_decide_what_is_computed(of):
    """The labels' values decide a branch, or how many elements there are; only a weight's shape is used."""
    given = {
        "ctc": ([keras.Input((6, 5)), keras.layers.Dense(4, "softmax")], ctc_batch_cost, np.arange(48).reshape(16, 3) % 3),
        "ones": ([keras.Input((5,)), Ones(), keras.layers.Dense(4)], "mse", Y),
    }
    layers, loss, labels = given.get(of, ([keras.Input((5,)), keras.layers.Dense(4)], of, Y))
    model = keras.Sequential(layers)
    x = np.random.default_rng(0).normal(size=(2 * BATCH, *model.input_shape[1:])).astype(np.float32)
    trainer = small(loss=loss, model=model, data=tf.data.Dataset.from_tensor_slices((x, labels)).batch(BATCH))
    fit_as_plain(trainer, "sgd", loss, x, labels, batch_size=BATCH)


# Where and when


def test_parallelize_and_capture_need_no_init():
    session = tensoropt.init("v100-1x2", seed=1)
    try:
        with refuses(r"parallelize HERE was called while a graph is recorded, as after tensoropt.init\(\)"):
            small()
        with refuses(r"capture HERE was called while a graph is recorded"):
            tensoropt.capture(tf.reduce_sum, [tf.TensorSpec([2])])
    finally:
        session._recording.close()


def test_steps_in_two_threads_at_once(trainer, monkeypatch):
    """The second one is refused; the first goes on."""
    under_way, go_on = threading.Event(), threading.Event()
    engine = trainer.ranks.execution.engine
    run = engine._run
    done = []

    def slow(*arguments: Any) -> Any:
        under_way.set()
        assert go_on.wait(60)
        return run(*arguments)

    monkeypatch.setattr(engine, "_run", slow)
    first = threading.Thread(target=lambda: done.append(trainer.train_on_batch(X[:BATCH], Y[:BATCH])), name="reader")
    first.start()
    assert under_way.wait(60)
    with refuses(r"a step was started HERE in thread 'MainThread' while thread 'reader' .* runs one"):
        trainer.train_on_batch(X[:BATCH], Y[:BATCH])
    go_on.set()
    first.join()
    assert len(done) == 1


# On ranks


def test_on_two_ranks_wrong_input_ends_all_with_one_sentence():
    result = run_ranks(2, WORKER, "wrong")
    assert result.stdout.count("refused: load (inputs_worker.py") == 2
    assert result.stderr.count("can't take a value of this batch (inputs_worker.py") == 1
    assert result.returncode == 2 and "Traceback" not in result.stderr


def test_what_is_computed_with_a_recorded_tensor_after_the_build_is_said_once():
    result = run_ranks(2, WORKER, "too late")
    assert result.stderr.count("a recorded tensor was computed with (inputs_worker.py:") == 1
    assert result.returncode == 2 and "Traceback" not in result.stderr


def test_wrong_input_in_a_thread_ends_all_ranks():
    result = run_ranks(2, WORKER, "thread")
    assert result.stderr.count("plan 'no/such/plan' can't be read") == 1
    assert result.returncode == 2 and "Traceback" not in result.stderr and "went on" not in result.stdout
