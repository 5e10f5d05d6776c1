"""Keras's trainer and ours, case by case (``keras_cases.py``), on two emulated ranks and on two real ones."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from trainer.keras_cases import CASES, Case
from trainer.keras_models import KINDS

from tensoropt.common.settings import VARIABLE, RandomMode

TOLERANCE = 1e-9
pytestmark = [
    pytest.mark.usefixtures("float64", "one_device", "graphs_as_built"),
    pytest.mark.filterwarnings("ignore:.shuffle=True. was passed"),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept"),  # Keras writes its files so
    pytest.mark.filterwarnings("ignore:Your input ran out of data"),
    pytest.mark.filterwarnings("ignore:Limiting (epochs|steps_per_epoch) to"),
    pytest.mark.filterwarnings("ignore:Gradients do not exist"),
    pytest.mark.filterwarnings("ignore:Early stopping conditioned on metric"),
]


@pytest.fixture(scope="module")
def one_device() -> Iterator[None]:
    """Random operators draw as on one device."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, RandomMode.ONE_DEVICE.value)
        yield


@cache
def trainer_of(kind: str) -> Any:
    return KINDS[kind].trainer(collectives="emulated", parallelism=2, cluster="v100-1x2")


def fresh(kind: str) -> Any:
    """The trainer of a kind of model as it was before its first step."""
    trainer = trainer_of(kind)
    if trainer.deferred is None:
        trainer.ranks.execution.engine.initialize()
    trainer._initial_epoch = None
    return trainer


@cache
def plain_of(kind: str) -> tuple[keras.Model, list[np.ndarray]]:
    model = KINDS[kind].plain()
    model.optimizer.build(model.trainable_variables)
    return model, [variable.numpy() for variable in _state(model)]


def _state(model: keras.Model) -> list[keras.Variable]:
    return [*model.variables, *model.optimizer.variables]


def fresh_plain(kind: str) -> keras.Model:
    """Plain Keras's model as it was before its first step; it is traced already."""
    model, values = plain_of(kind)
    for variable, value in zip(_state(model), values, strict=True):
        variable.assign(value)
    model._initial_epoch = None
    return model


def flat(found: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what a case returns, value by value, with its place."""
    if isinstance(found, dict):
        yield at, list(found)
        for name, value in found.items():
            yield from flat(value, f"{at}.{name}")
    elif isinstance(found, (list, tuple)):
        yield at, len(found)
        for i, value in enumerate(found):
            yield from flat(value, f"{at}[{i}]")
    else:
        yield at, found


def assert_same(got: Any, expected: Any) -> None:
    """Numbers are the same to 1e-9 of the tensor's largest magnitude, anything else exactly."""
    ours, theirs = dict(flat(got)), dict(flat(expected))
    assert list(ours) == list(theirs)
    for at, value in theirs.items():
        if isinstance(value, (float, np.ndarray, np.floating)) and not isinstance(value, bool):
            scale = float(np.max(np.abs(value), initial=0.0))
            np.testing.assert_allclose(ours[at], value, rtol=0, atol=TOLERANCE * scale + 1e-14, err_msg=at)
        else:
            assert ours[at] == value, at


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_as_plain_keras(case: Case, tmp_path: Path) -> None:
    folders = [tmp_path / who for who in ("ours", "keras")]
    for folder in folders:
        folder.mkdir()
    plain, trainer = fresh_plain(case.kind), fresh(case.kind)
    expected = case.use(plain, folders[1])
    got = case.use(trainer, folders[0])
    assert_same(got, expected)
    assert_same(trainer.get_weights(), plain.get_weights())
