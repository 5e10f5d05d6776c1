"""Models with steps of their own, and custom training loops, train to plain Keras's numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.mpirun import run_ranks
from trainer.own_steps import CASES, check, inputs

# Keras writes its files so.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept")
EMULATED: Any = {"collectives": "emulated", "parallelism": 2, "cluster": "v100-1x2"}


@pytest.mark.parametrize("name", CASES)
def test_steps_of_their_own_give_plain_keras_numbers(name: str, tmp_path: Path):
    trainer = check(name, **EMULATED)
    assert trainer.plan.n_collectives
    if name == "gan":  # both optimizers go on
        trainer.save(tmp_path / "gan")
        expected = trainer.fit(inputs(), epochs=3, initial_epoch=2, shuffle=False, verbose=0).history
        trainer.load(tmp_path)
        again = trainer.fit(inputs(), epochs=3, shuffle=False, verbose=0).history
        assert again["g_loss"] == pytest.approx(expected["g_loss"], rel=1e-9)
    if name == "distiller":
        trainer.save_weights(tmp_path / "of.weights.h5")
        other = CASES[name].model()
        other.load_weights(tmp_path / "of.weights.h5")
        assert all(map(np.array_equal, other.get_weights(), trainer.get_weights()))


def test_steps_on_two_ranks(tmp_path: Path):
    result = run_ranks(2, Path(__file__).with_name("own_steps_worker.py"), tmp_path, timeout=300)
    assert result.stdout.count("as on one device") == 2, result.stderr
    said = r"a training step reads 'adam\w*/iteration' of the optimizer that it applies \(own_steps.py:\d+\)"
    assert len(re.findall(said, result.stderr)) == 1
    assert result.returncode == 2 and "Traceback" not in result.stderr
