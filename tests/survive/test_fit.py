"""A ``fit`` that is cut short goes on with the numbers, the samples and the callbacks of one that never was."""

from __future__ import annotations

import random
import secrets
import threading
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from trainer.models import BATCH, assert_same_weights, batches, fresh_plain, images, parallelized, restart, shuffled

import tensoropt
from tensoropt.common.errors import InputError, TensorOptError
from tensoropt.runtime.checkpoint import saving
from tensoropt.runtime.checkpoint.room import Room
from tensoropt.survive import callback as survive
from tensoropt.survive.run_folder import FitFolder
from tensoropt.trainer import seeding
from tensoropt.trainer.trainer import Trainer

N_STEPS, EPOCHS = 5, 3
pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:.shuffle=True. was passed"),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept"),  # of Keras's LearningRateScheduler
]


class Killed(Exception):
    pass


class Killer(keras.callbacks.Callback):
    """Ends the fit in a step, or in a validation."""

    is_near = threading.Event()

    def __init__(self, n_calls: int) -> None:
        super().__init__()
        self.n_calls = n_calls

    def _count(self, *_, **__) -> None:
        self.n_calls -= 1
        if 0 < self.n_calls <= 3:
            self.is_near.set()
            for thread in threading.enumerate():
                if thread.name == "tensoropt-save":
                    thread.join(60)
        if self.n_calls == 0:
            raise Killed

    on_train_batch_end = on_test_batch_begin = on_epoch_end = _count


class Steps(keras.callbacks.Callback):
    """Remembers what it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple] = []

    def on_epoch_begin(self, epoch, logs=None):
        self.seen.append(("epoch", epoch))

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append((batch, logs["loss"], logs["accuracy"]))


class Augmented(keras.utils.PyDataset):
    """Data in an order of its own, with noise from NumPy's numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(3)
        self.order = self.rng.permutation(N_STEPS)

    def __len__(self):
        return N_STEPS

    def __getitem__(self, index):
        start = self.order[index] * BATCH
        x, y = (part[start : start + BATCH] for part in images(N_STEPS * BATCH))
        return x + np.random.normal(), y

    def on_epoch_end(self):
        self.order = self.rng.permutation(N_STEPS)


def drawn():
    x, y = images(40)
    while True:
        chosen = np.random.randint(0, 40, BATCH)
        yield x[chosen], y[chosen]


def data(kind: str) -> dict:
    if kind == "arrays":
        return dict(zip("xy", images(N_STEPS * BATCH), strict=True)) | {"batch_size": BATCH}
    if kind == "generator":
        return {"x": drawn(), "steps_per_epoch": N_STEPS}
    return {"x": shuffled() if kind == "dataset" else Augmented()}


@pytest.fixture(autouse=True)
def waits_for_saves(monkeypatch):
    monkeypatch.setattr(tensoropt.Survive, "writes_apart", False)  # so that what was saved when is certain


@pytest.fixture(scope="module")
def trainer(float64):
    return parallelized(n_ranks=2)


def result(trainer: Trainer, kind: str, folder: Path, kill_at: int = 0, every: int = 2):
    """Train in what stands for a process of its own; return all that may differ."""
    survive._fits.clear()
    restart(trainer)
    trainer.optimizer.learning_rate = 1e-2
    np.random.seed(4)
    random.seed(5)
    tf.random.set_seed(3)
    seeding._of_run = 3 if kind == "arrays" else None  # as in a script that seeds nothing
    steps, log = Steps(), folder.with_suffix(".csv")
    stopping = keras.callbacks.EarlyStopping(monitor="loss", restore_best_weights=True)
    killer, logger = Killer(kill_at), keras.callbacks.CSVLogger(log)
    keeper = tensoropt.Survive(folder, every=every, stateless=[killer])
    falling = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9)
    callbacks = [keeper, steps, stopping, logger, falling, killer]
    try:
        history = trainer.fit(**data(kind), epochs=EPOCHS, verbose=0, validation_data=batches(16), callbacks=callbacks)
    finally:
        logger.csv_file.close()
    return (
        *(history.epoch, history.history, steps.seen, stopping.best, log.read_text()),
        *(int(trainer.optimizer.iterations), trainer.get_weights(), np.random.random()),
    )


@pytest.mark.parametrize("kind", ["arrays", "dataset", "generator", "py_dataset"])
def test_a_fit_that_is_cut_short_goes_on_as_one_that_was_not(trainer, kind, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(secrets, "randbits", lambda n: 7)  # both runs shuffle arrays alike
    expected = result(trainer, kind, tmp_path / "whole")
    for moment in np.random.default_rng(len(kind)).integers(3, 12, 2):
        with pytest.raises(Killed):
            result(trainer, kind, tmp_path / "cut", int(moment))
    got, again = (result(trainer, kind, tmp_path / "cut") for _ in range(2))
    for one in (got, again):
        assert repr(one[:6]) == repr(expected[:6])
        assert_same_weights(one[6], expected[6], 0)
    if kind in ("arrays", "dataset"):  # others read ahead in a thread, which draws too
        assert got[7] == again[7] == expected[7]
    said = capfd.readouterr().err
    assert said.count("goes on from") == 2 and said.count("this fit had ended") == 1 and "isn't what it was" not in said


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_taken(trainer, tmp_path, capfd):
    folder = tmp_path / "run"
    with pytest.raises(Killed):
        result(trainer, "dataset", folder, 12)
    newest, before = (FitFolder(folder, 0).prefix(n) for n in (8, 6))
    (left := Path(before).with_name(".step-7.partial")).mkdir()
    file = next(Path(newest).parent.glob(f"{Path(newest).name}.data-00000*"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(Killed):
        result(trainer, "dataset", folder, 1)
    said = capfd.readouterr().err
    assert f"checkpoint '{newest}' is damaged" in said and not left.exists()
    assert f"goes on from '{before}' (epoch 2, step 1)" in said


def test_training_goes_on_while_the_state_of_a_step_is_written(trainer, tmp_path, monkeypatch, capfd):
    expected, write = result(trainer, "dataset", tmp_path / "whole"), saving._write_shards
    rooms, in_room = list[Room](), list[bool]()

    def ready_room(*given, **options):
        rooms.append(saving.room_for(*given, **options))
        rooms[-1]._thread.join(60)
        return rooms[-1]

    def wait_and_write(location, device, items):
        in_room.append(rooms[0]._taken > 0.9 * rooms[0].n_bytes)
        assert Killer.is_near.wait(60)
        if len(in_room) > 1:
            raise TensorOptError("the disk is full")
        return write(location, device, items)

    Killer.is_near.clear()
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(tensoropt.Survive, "writes_apart", True)
        patched.setattr(saving, "_write_shards", lambda location, device, items: wait_and_write(location, device, items))
        patched.setattr(survive, "room_for", ready_room)
        patched.setattr(saving, "_items", with_one_device(saving._items))
        result(trainer, "dataset", tmp_path / "cut", 13, every=4)
    got = result(trainer, "dataset", tmp_path / "cut", every=100)
    assert repr(got[:6]) == repr(expected[:6])
    assert_same_weights(got[6], expected[6], 0)
    assert len(rooms) == 1 and in_room == [True, True]
    assert "/cut/fit-0/step-4' (epoch 1, step 4)" in capfd.readouterr().err


def with_one_device(items):
    """Return a function that has all emulated devices' items written at once."""
    return lambda *given: {0: [item for of_device in items(*given).values() for item in of_device]}


def test_data_that_differs_on_replay_is_told(trainer, tmp_path, capfd):
    folder = tmp_path / "run"
    for kind, moment in (("dataset", 4), ("arrays", 1)):
        with pytest.raises(Killed):
            result(trainer, kind, folder, moment)
    assert "the data isn't what it was when the run was saved" in capfd.readouterr().err


class Opaque(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.file = object()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [({"every": "10"}, "the time between two saves is a time above 0 with"),
     ({"every": 0}, "takes every=, a time such as '10min' or a number of steps"),
     ({"keep": 0}, "Survive takes keep=, how many checkpoints to keep")],
)  # fmt: skip
def test_wrong_arguments_are_refused(tmp_path, given, sentence):
    with pytest.raises(InputError, match=sentence):
        tensoropt.Survive(tmp_path, **given)


def test_a_fit_that_cannot_be_kept_is_refused(trainer, tmp_path):
    keeper = tensoropt.Survive(tmp_path / "run")
    for callbacks, sentence in (
        ([keeper, Opaque()], "can't keep the state of callback Opaque: its file has a value of type object; give"),
        ([keeper, keeper], "got 2 callbacks tensoropt.Survive; give one on all ranks"),
        ([keeper, keras.callbacks.BackupAndRestore(tmp_path)], "Survive does what BackupAndRestore does"),
        ([tensoropt.Survive("/proc/none")], "nothing can be saved in '/proc/none/fit-0'"),
    ):
        with pytest.raises(InputError, match=sentence):
            trainer.fit(batches(16), verbose=0, callbacks=callbacks)
    with pytest.raises(InputError, match=r"takes what its loop trains: a trainer, .*; got 'model'"):
        next(keeper.steps(3, "model"))
    with pytest.raises(InputError, match=r"keeps numbers, text and arrays in state=, .* got a value of type object"):
        next(keeper.steps(3, trainer, {"file": object()}))
    for _ in tensoropt.Survive(tmp_path / "loop").steps(1, trainer):
        pass
    survive._fits.clear()
    with pytest.raises(InputError, match="step-1' was saved by a loop, and fit can't use it; give another folder"):
        trainer.fit(batches(16), verbose=0, callbacks=[tensoropt.Survive(tmp_path / "loop")])
    with pytest.raises(InputError, match="and Keras itself trains model"):
        fresh_plain().fit(batches(16), verbose=0, callbacks=[keeper])


def loop(kind: str, folder: Path, kill_at: int = 0) -> tuple:
    """Train by a loop of one's own, in what stands for a process of its own; return all that may differ."""
    survive._fits.clear()
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((72,)), keras.layers.Dropout(0.2), keras.layers.Dense(4)])
    optimizer = keras.optimizers.SGD(1e-2)

    def step(x, y):
        with tf.GradientTape() as tape:
            value = tf.reduce_mean((model(x, training=True) - y) ** 2)
        optimizer.apply(tape.gradient(value, model.trainable_variables), model.trainable_variables)
        return value

    where = {"collectives": "emulated", "parallelism": 2, "cluster": "v100-1x4"}
    x, y = np.random.default_rng(0).normal(size=(40, 72)), np.random.default_rng(1).normal(size=(40, 4))
    if kind == "training step":
        batch = x[:BATCH], y[:BATCH]
        trains = tensoropt.training_step(step, model=model, optimizer=optimizer, batch_size=BATCH, data=batch, **where)
        run, weights = trains, lambda: trains.export() or model.get_weights()
    elif kind == "train_on_batch":
        trains = tensoropt.parallelize(model, optimizer, loss="mse", metrics=["mae"], batch_size=BATCH, **where)
        run, weights = lambda *given: trains.train_on_batch(*given)[1], trains.get_weights
    else:
        tensoropt.init("v100-1x4", seed=3)
        fed = [tensoropt.placeholder(tf.float64, [BATCH, n]) for n in (72, 4)]
        kernel = tensoropt.get_variable("kernel", [72, 4], tf.float64)
        value = tf.reduce_mean((tf.nn.dropout(fed[0] @ kernel, 0.2, seed=5) - fed[1]) ** 2)
        train = tensoropt.AdamOptimizer(1e-2).minimize(value)
        trains = tensoropt.build_execution_graph(plan=tensoropt.find_strategy(parallelism=2), collectives="emulated")
        run = lambda *given: trains.run([value, train], dict(zip(fed, given, strict=True)))[0]  # noqa: E731
        weights = lambda: [trains.run(kernel)]  # noqa: E731
    state: dict = {"losses": [], "order": np.arange(40)}
    np.random.seed(1)
    for number in tensoropt.Survive(folder, every=3).steps(10, trains, state):
        chosen = np.random.permutation(state["order"])[:BATCH]
        state["losses"].append(float(run(x[chosen], y[chosen])))
        if number == kill_at - 1:
            raise Killed
    return state["losses"], weights()


@pytest.mark.parametrize("kind", ["training step", "train_on_batch", "session"])
def test_a_loop_of_ones_own_goes_on(kind, tmp_path, capfd):
    expected = loop(kind, tmp_path / "whole")
    with pytest.raises(Killed):
        loop(kind, tmp_path / "cut", 8)
    got = loop(kind, tmp_path / "cut")
    assert got[0] == expected[0]
    assert_same_weights(got[1], expected[1], 0)
    assert f"goes on from '{tmp_path}/cut/fit-0/step-6' (step 6)" in capfd.readouterr().err
