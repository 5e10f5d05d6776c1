"""Keras's callbacks do on emulated ranks what they do with plain Keras on one device: the same history, the same files."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import keras
import numpy as np
import pytest
from trainer.models import (
    assert_same_history,
    assert_same_weights,
    batches,
    fresh_plain,
    images,
    parallelized,
    plain,
    restart,
)

import tensoropt

pytestmark = [
    pytest.mark.filterwarnings("ignore:.shuffle=True. was passed"),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept"),  # Keras writes its files so
]


@pytest.fixture(scope="module")
def trainer():
    return parallelized(n_ranks=2)


@pytest.fixture
def fresh(trainer):
    """The trainer as it was before its first step."""
    restart(trainer)
    trainer._initial_epoch = None
    return trainer


def both(fresh, callbacks, epochs: int = 4):
    """The histories of the trainer and of plain Keras, each with callbacks of its own."""
    expected = fresh_plain()
    given = {"epochs": epochs, "validation_data": batches(16), "verbose": 0}
    got = fresh.fit(batches(16), callbacks=callbacks("got"), **given)
    assert_same_history(got, expected.fit(batches(16), callbacks=callbacks("expected"), **given))
    assert_same_weights(fresh.get_weights(), expected.get_weights())
    return expected


@pytest.mark.parametrize(
    "callback",
    [
        lambda: keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5 if epoch else rate),
        lambda: keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=10.0),
        lambda: keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=10.0, restore_best_weights=True),
        lambda: keras.callbacks.EarlyStopping("loss", patience=1, mode="max", restore_best_weights=True),
        pytest.param(lambda: keras.callbacks.TerminateOnNaN(), marks=pytest.mark.large),
    ],
    ids=["LearningRateScheduler", "ReduceLROnPlateau", "EarlyStopping", "EarlyStopping restores", "TerminateOnNaN"],
)
def test_callbacks_that_steer_training(fresh, callback):
    both(fresh, lambda _: [callback()])


def test_not_a_number_ends_training(fresh):
    x, y = images(16)
    x[3] = np.nan
    history = fresh.fit(x, y, epochs=3, verbose=0, callbacks=[keras.callbacks.TerminateOnNaN()])
    assert len(history.epoch) == 1


def test_files(fresh, tmp_path: Path):
    def callbacks(who: str) -> list[keras.callbacks.Callback]:
        folder = tmp_path / who
        folder.mkdir()
        return [
            keras.callbacks.ModelCheckpoint(folder / "best.keras", save_best_only=True),
            keras.callbacks.ModelCheckpoint(folder / "{epoch}.weights.h5", save_weights_only=True),
            keras.callbacks.CSVLogger(folder / "log.csv"),
            keras.callbacks.BackupAndRestore(folder / "backup", delete_checkpoint=False),
        ]

    expected = both(fresh, callbacks, epochs=2)
    got, plain_files = tmp_path / "got", tmp_path / "expected"
    names = sorted(str(file.relative_to(plain_files)) for file in plain_files.rglob("*"))
    assert sorted(str(file.relative_to(got)) for file in got.rglob("*")) == names
    rows = [list(csv.reader((folder / "log.csv").read_text().splitlines())) for folder in (got, plain_files)]
    assert rows[0][0] == rows[1][0] and len(rows[0]) == len(rows[1]) == 3
    for name in ("best.keras", "2.weights.h5"):
        ours, keras_own = (load(folder / name) for folder in (got, plain_files))
        assert_same_weights(ours.get_weights(), keras_own.get_weights())
        slots = [[variable.numpy() for variable in model.optimizer.variables] for model in (ours, keras_own)]
        assert_same_weights(*slots)
    assert load(got / "best.keras").evaluate(batches(16), verbose=0) == pytest.approx(
        expected.evaluate(batches(16), verbose=0), rel=1e-4
    )


def load(file: Path) -> keras.Model:
    if file.suffix == ".keras":
        return keras.models.load_model(file)
    model = plain()
    model.optimizer.build(model.trainable_variables)
    model.load_weights(file)
    return model


def test_a_run_that_was_cut_off_goes_on_from_its_backup(fresh, tmp_path: Path):
    class PowerCut(Exception):
        pass

    def cut(epoch: int, logs: object) -> None:
        raise PowerCut

    backup = lambda: keras.callbacks.BackupAndRestore(tmp_path / "backup")  # noqa: E731
    with pytest.raises(PowerCut):
        fresh.fit(
            batches(16), epochs=3, verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=cut), backup()][::-1]
        )
    restart(fresh)
    history = fresh.fit(batches(16), epochs=3, verbose=0, callbacks=[backup()])
    expected = fresh_plain()
    expected.fit(batches(16), epochs=3, verbose=0)
    assert history.epoch == [1, 2]
    assert_same_weights(fresh.get_weights(), expected.get_weights())
    assert not (tmp_path / "backup").exists()


def test_a_users_own_may_do_what_it_does_with_keras(fresh):
    seen = []

    class Own(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            x, y = images(5)
            self.model.optimizer.learning_rate = 0.5**epoch
            seen.append((self.model.evaluate(x, y, verbose=0), self.model.predict(x, verbose=0), self.model.get_weights()))
            self.model.stop_training = epoch == 1

        def on_batch_end(self, batch, logs=None):
            seen.append(batch)

    got = list(seen)
    both(fresh, lambda _: [Own()])
    half = len(seen) // 2
    got, expected = seen[:half], seen[half:]
    assert len(got) == 6
    for one, other in zip(got, expected, strict=True):
        if isinstance(one, int):
            assert one == other
        else:
            assert one[0] == pytest.approx(other[0], rel=1e-5)
            assert_same_weights([one[1], *one[2]], [other[1], *other[2]])


def test_a_schedule_is_followed_and_cant_be_set():
    make = lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5))  # noqa: E731
    trainer, expected = parallelized(optimizer=make(), n_ranks=2), plain(make())
    assert_same_history(trainer.fit(batches(16), epochs=2, verbose=0), expected.fit(batches(16), epochs=2, verbose=0))
    assert float(trainer.optimizer.learning_rate) == pytest.approx(0.1 * 0.5**2)
    with pytest.raises(tensoropt.InputError, match="learning rate of step 'train' can't be set"):
        trainer.fit(batches(16), verbose=0, callbacks=[keras.callbacks.LearningRateScheduler(lambda epoch: 0.1)])


def test_tensorboard(fresh, tmp_path: Path):
    def tags(folder: Path) -> set[str]:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        found: set[str] = set()
        for part in ("train", "validation"):
            events = EventAccumulator(str(folder / part), {"tensors": 0})
            events.Reload()
            found |= {f"{part} {tag}" for tag in events.Tags()["tensors"] if "keras" not in tag}
        return found

    both(fresh, lambda who: [keras.callbacks.TensorBoard(tmp_path / who, histogram_freq=1)], epochs=2)
    got, expected = ({re.sub(r"_\d+", "", tag) for tag in tags(tmp_path / who)} for who in ("got", "expected"))
    own = {tag for tag in got if "tensoropt/" in tag}
    assert got - own == expected
    names = ("predicted_step_ms", "measured_step_ms", "samples_per_s", "memory_bytes_per_device", "peak_bytes_per_device")
    assert own == {f"train epoch_tensoropt/{name}" for name in names}
    assert "train dense/kernel/histogram" in got
