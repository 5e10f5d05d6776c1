"""The rates of shipped devices that were measured: they are what the measurements give."""

import json
from pathlib import Path

import pytest
from benchmarks import device_operators
from benchmarks.device_operators import fitted_rates, sample

from tensoropt.profiling.hardware import named
from tensoropt.profiling.hardware.rates import WAYS

TIMES = Path(device_operators.__file__).parent / "h100_operators.json"


@pytest.mark.parametrize(("device", "precision"), [("h100", "float32"), ("h100tf32", "tfloat32")])
def test_the_rates_of_an_h100_are_fitted_to_what_was_measured(device, precision):
    cases = json.loads(TIMES.read_text())["cases"]
    learnt = [case for case in cases if not case["of_step"]]
    assert fitted_rates(learnt, precision) == named(f"{device}-1x8").operators
    fewer = [case for case in learnt if not case["held_out"]]
    assert fitted_rates(fewer, precision) == fitted_rates(learnt, precision)
    assert all(sample(case, way, precision) for case in fewer for way in WAYS[:1])


def test_only_rates_and_names_differ_between_both_precisions():
    plain, tf32 = (named(f"{device}-2x8") for device in ("h100", "h100tf32"))
    assert (plain.device, plain.levels) == (tf32.device, tf32.levels)
    differing = {name for name in plain.operators if plain.operators[name] != tf32.operators[name]}
    assert differing == {"matrix product", "convolution", "MatMul", "Einsum"}
