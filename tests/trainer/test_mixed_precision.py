"""Mixed precision is plain Keras's: scaled losses, skipped steps, and numbers as near as rounding lets them be."""

from __future__ import annotations

import pytest
from helpers.large import first
from helpers.mpirun import run_ranks
from trainer import mixed
from trainer.mixed import WEIGHTS, OneDevice, by_plan

EMULATED = {"collectives": "emulated", "cluster": "v100-1x4", "parallelism": 2}
# All inner sums are split; features are; the batch is.
FORCED = ({"Conv2D": {"i": 2}, "MatMul": {"k": 2}}, {"MatMul": {"n": 2}}, {"Conv2D": {"n": 2}, "MatMul": {"m": 2}})


@pytest.mark.parametrize("name", first(1, sorted(WEIGHTS, reverse=True)))
def test_training_in_16_bits(name: str, everything: bool) -> None:
    one_device = OneDevice.of(name)
    assert 0 < one_device.rounding < 0.05
    for asked in ({"stages": 2}, *({"force": force} for force in (FORCED if everything else FORCED[:1]))):
        one_device.check(by_plan(name, WEIGHTS[name], **asked, **EMULATED))
    if name == "mixed_float16":
        assert [step.scaling["iteration"] for step in one_device.steps] == [0, 1, 2], "the first step is to overflow"
        assert one_device.steps[-1].scaling["dynamic_scale"] == 2.0**14
    else:
        assert not one_device.steps[0].scaling


@pytest.mark.parametrize(
    ("name", "collectives"),
    first(1, [("mixed_float16", "mpi"), ("mixed_float16", "tensorflow"), ("mixed_bfloat16", "tensorflow")]),
)
def test_training_in_16_bits_on_ranks(name: str, collectives: str) -> None:
    result = run_ranks(2, mixed.__file__, name, env={"TENSOROPT_COLLECTIVES": collectives})
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("done") == 2
