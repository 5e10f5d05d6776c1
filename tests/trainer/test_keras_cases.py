"""Keras's trainer and ours, case by case, on two emulated ranks, and some cases on two real ones.

The cases are in ``keras_cases.py`` and ``keras_callback_cases.py``; ``make test`` holds some, ``--all`` all.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import pytest
from helpers.large import first
from helpers.mpirun import run_ranks
from trainer.keras_cases import IN_ORDER, NAMED, Case, dataset
from trainer.keras_cases_running import CASES, check, fresh
from trainer.keras_models import BATCH, BITS, KINDS, X, Y
from trainer.models import fresh_plain

from tensoropt.common.errors import InputError

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:Limiting (epochs|steps_per_epoch) to"),
    pytest.mark.filterwarnings("ignore:Early stopping conditioned on metric"),
    pytest.mark.filterwarnings("ignore:Gradients do not exist"),
]
WORKER = Path(__file__).with_name("keras_cases_running.py")
EMULATED: Any = {"collectives": "emulated", "parallelism": 2}
ON_RANKS = ["a PyDataset that changes after an epoch", "data that ends, weighted", "training stops in an epoch"]
OTHERS_ON_RANKS = [
    "a generator of weighted samples", "what hooks are given", "EarlyStopping restores from an epoch on", "single batches",
    "shuffled in each batch", "losses that layers add, metrics with a state", "validation by some steps",
    "by name, a PyDataset", "ModelCheckpoint after some batches", "averages in place of weights after each epoch",
    "data that ends, decay",
]  # fmt: skip
BY_DEFAULT = {
    "validation every other epoch", "a generator of weighted samples", "class weights",
    "single precision, and labels as a column", "steps of an epoch that go on into the next pass", "averages of weights",
    "a callback of the user's own", "TerminateOnNaN ends training", "ReduceLROnPlateau with a pause",
    "EarlyStopping restores from an epoch on", "CSVLogger appends", "ModelCheckpoint after some batches",
    "data that ends, by name", "a metric of a rate that falls", "by name, weighted", "shuffled arrays after a seed",
    "a PyDataset that changes after an epoch", "a PyDataset of lists", "steps of an epoch of arrays",
    "validation by some steps", "at most so many epochs and steps", "lines on the screen",
    "losses that layers add, metrics with a state", "evaluate, lines on the screen", "predict a dataset with labels",
    "single batches", "what a model says of itself", "what hooks are given", "a CallbackList of the user's own",
    "BackupAndRestore after an interruption",
}  # fmt: skip


def parameters() -> list[Any]:
    assert CASES.keys() >= BY_DEFAULT
    marks = {name: () if name in BY_DEFAULT else pytest.mark.large for name in CASES}
    return [pytest.param(case, id=name, marks=marks[name]) for name, case in CASES.items()]


@pytest.mark.parametrize("case", parameters())
def test_as_plain_keras(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path, **EMULATED)


@pytest.mark.parametrize("names", first(1, [ON_RANKS, OTHERS_ON_RANKS]), ids=["of one model", "of others"])
def test_on_two_ranks_as_plain_keras(names: list[str], tmp_path: Path) -> None:
    result = run_ranks(2, WORKER, tmp_path, *names, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    said = [f"same: {name}" for name in names]
    assert [line for line in result.stdout.splitlines() if line.startswith("same")] == said


def test_metrics_cant_read_an_optimizer_that_scales_the_loss() -> None:
    kind = KINDS["a rate that falls"]
    scaled = replace(kind, optimizer=lambda: keras.optimizers.LossScaleOptimizer(kind.optimizer()))
    trainer = scaled.trainer(cluster="v100-1x2", **EMULATED)
    with pytest.raises(InputError, match=r"metric \(.*:\d+\) reads 'sgd.*/iteration' of optimizer LossScaleOptimizer"):
        trainer.train_on_batch(X[:8], BITS[:8])


def test_a_schedule_is_followed_and_cant_be_set() -> None:
    trainer = fresh("a rate that falls", **EMULATED)
    trainer.fit(X[:16], BITS[:16], verbose=0, **IN_ORDER)
    assert float(trainer.optimizer.learning_rate) == pytest.approx(0.1 * 0.5)
    with pytest.raises(InputError, match="learning rate of step 'train' can't be set"):
        trainer.fit(X, BITS, verbose=0, callbacks=[keras.callbacks.LearningRateScheduler(lambda epoch: 0.1)])


def test_a_column_that_no_input_takes_is_left_out() -> None:
    inputs, labels = ({name: value[:16] for name, value in each.items()} for each in NAMED)
    losses = []
    for more in ({}, {"unused": X[:16]}):
        trainer = fresh("by name", **EMULATED)
        losses.append(trainer.fit(dataset({**inputs, **more}, labels)(), verbose=0).history)
    assert losses[0] == losses[1]


def _tags(folder: Path) -> set[str]:
    """Return the names in TensorBoard's files, but for what Keras makes of a graph."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: set[str] = set()
    for part in ("train", "validation"):
        events = EventAccumulator(str(folder / part), {"tensors": 0})
        events.Reload()
        found |= {f"{part} {tag}" for tag in events.Tags()["tensors"] if "keras" not in tag}
    return found


def test_tensorboard_shows_what_it_shows_of_keras_and_the_plan(tmp_path: Path) -> None:
    for who, model in {"ours": fresh("classes", **EMULATED), "plain": fresh_plain(KINDS["classes"].plain)}.items():
        board = keras.callbacks.TensorBoard(tmp_path / who, histogram_freq=1)
        model.fit(X, Y, batch_size=BATCH, validation_data=(X, Y), verbose=0, callbacks=[board])
    ours, plain = _tags(tmp_path / "ours"), _tags(tmp_path / "plain")
    names = ("predicted_step_ms", "measured_step_ms", "samples_per_s", "memory_bytes_per_device", "peak_bytes_per_device")
    assert ours - plain == {f"train epoch_tensoropt/{name}" for name in names} and plain <= ours
    assert any(tag.endswith("/kernel/histogram") for tag in plain)
