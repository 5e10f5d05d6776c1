"""Each of Keras's layers trains as by plain Keras, by any strategy, with the arguments of Keras's own tests."""

from __future__ import annotations

from typing import Any
from unittest import mock

import keras
import pytest
from random_models import running
from random_models.drawing import Case, CaseOptions
from random_models.running import SAME, Outcome

from keras_layers import catalog, preparing
from keras_layers.entries import BATCH_SIZE, Entry, training_of

ENTRIES: tuple[Entry, ...] = (
    *catalog.CORE, *catalog.ACTIVATIONS, *catalog.ATTENTION, *catalog.CONVOLUTIONS, *catalog.MERGING, *catalog.NORMALIZATION,
    *catalog.POOLING, *catalog.REGULARIZATION, *catalog.RESHAPING, *catalog.RECURRENT, *preparing.COLORS, *preparing.PLACES,
    *preparing.SEVERAL, *preparing.SOUNDS, *preparing.COLUMNS,
)  # fmt: skip
NOT_HELD = {
    "InputLayer": "is in every model",
    "InputSpec": "is no layer",
    "Layer": "is abstract",
    "Wrapper": "is abstract",
    "FlaxLayer": "computes by JAX",
    "JaxLayer": "computes by JAX",
    "TorchModuleWrapper": "computes by PyTorch",
    "TFSMLayer": "reads its operators from a file",
    "MaxNumBoundingBoxes": "pads boxes, which are labels, and computes nothing",
    "AugMix": "chooses what it computes by Python's random numbers when it is traced, once by Keras and more often here",
    "StringLookup": "takes text: tests/trainer/test_preprocessing.py",
    "TextVectorization": "takes text: tests/trainer/test_preprocessing.py",
}
OPTIONS = CaseOptions("random", "v100-1x2", 2, None, ())


def outcome_of(number: int) -> Outcome:
    """A step of training and a prediction, by a strategy drawn from the entry's number."""
    entry = ENTRIES[number]
    case = Case(number, entry.floats, (BATCH_SIZE,), False, False, entry.predicts, OPTIONS)
    with mock.patch.object(running, "made", lambda case: training_of(ENTRIES[case.seed], case.seed)):
        return running.run(case)


def parameters() -> list[Any]:
    marks = [() if entry.by_default else pytest.mark.large for entry in ENTRIES]
    return [pytest.param(i, id=f"{i} {entry.layer}", marks=marks[i]) for i, entry in enumerate(ENTRIES)]


@pytest.mark.parametrize("number", parameters())
def test_layers_train_as_by_plain_keras(number: int) -> None:
    outcome = outcome_of(number)
    assert outcome.kind == SAME, str(outcome)


def test_no_layer_is_left_out() -> None:
    """The layers that Keras has are those of the catalogue, and those with a reason."""
    public = (getattr(keras.layers, name) for name in dir(keras.layers))
    known = {each.__name__ for each in public if isinstance(each, type)}
    held = set().union(*(entry.classes for entry in ENTRIES))
    assert known == held | NOT_HELD.keys()
    assert held.isdisjoint(NOT_HELD)
