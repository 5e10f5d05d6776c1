"""``tensoropt search FILE.keras|FILE.py:FUNCTION``: plans for Keras models, on hardware that isn't there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import pytest
from trainer.models import network, parallelized, plain

import tensoropt
from tensoropt.tools.cli.main import main
from tensoropt.tools.offline import record_named

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept")


def test_a_search_over_a_compiled_model(tmp_path: Path):
    plain().save(tmp_path / "model.keras")
    out = tmp_path / "out.json"
    arguments = [str(tmp_path / "model.keras"), "--cluster", "v100-1x4", "--batch", "64", "--json", str(out)]
    assert main(["search", *arguments]) == 0
    found = json.loads(out.read_text())
    assert found["optimizer"] == "adam"
    assert found["devices"] == 4
    assert found["points"]


def test_what_is_recorded_is_what_parallelize_would_run(tmp_path: Path):
    network().save(tmp_path / "model.keras")
    recorded = record_named(str(tmp_path / "model.keras"), "momentum", 8)
    trained = parallelized(optimizer=keras.optimizers.SGD(momentum=0.9), loss="mean_squared_error", metrics=None)
    planned = trained.ranks.runs.planned.captured.graph
    assert [op.type for op in recorded.model.graph.operators.values()] == [op.type for op in planned.operators.values()]


MODEL_FILE = """
import keras

def create():
    layers = [keras.Input((6,)), keras.layers.Dense(5, "relu", name="one"), keras.layers.Dense(3, name="two")]
    model = keras.Sequential(layers, name="mine")
    model.compile("adamw", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model

def unbuilt():
    return keras.Sequential([keras.layers.Dense(3)])
"""


def test_a_function_that_returns_a_keras_model(tmp_path: Path):
    file = tmp_path / "model_of_mine.py"
    file.write_text(MODEL_FILE)
    recorded = record_named(f"{file}:create", batch_size=16)
    assert recorded.optimizers == ("adamw",)
    (batch,) = {op.result.shape[0] for op in recorded.model.graph.operators.values() if op.type == "Placeholder"}
    assert batch == 16
    recorded_in: dict[str, Any] = {}
    exec(MODEL_FILE, recorded_in)
    model = recorded_in["create"]()
    trainer = tensoropt.parallelize(model, model.optimizer, model.loss, ["accuracy"], batch_size=16, parallelism=1)
    planned = trainer.ranks.runs.planned.captured.graph
    assert list(recorded.model.graph.operators) == list(planned.operators) and recorded.model.graph.digest == planned.digest
    with pytest.raises(tensoropt.InputError, match="compiled with the optimizer adamw, got --optimizer sgd; leave out"):
        record_named(f"{file}:create", "sgd")
    with pytest.raises(tensoropt.InputError, match="doesn't tell the shapes of its inputs; expected every extent"):
        record_named(f"{file}:unbuilt")


def test_files_that_are_none(tmp_path: Path):
    with pytest.raises(tensoropt.InputError, match=r"file '.*none.keras' isn't there; expected what model.save"):
        record_named(str(tmp_path / "none.keras"))
    (tmp_path / "bad.keras").write_text("no model")
    with pytest.raises(tensoropt.InputError, match=r"model '.*bad.keras' can't be loaded"):
        record_named(str(tmp_path / "bad.keras"))
