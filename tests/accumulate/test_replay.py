"""Replays of steps in many slices: one slice stands for those between the first and the last."""

from __future__ import annotations

import accumulate.models as models
import pytest
from helpers.strategies import Link

from tensoropt.costs.operator_costs import costing_of
from tensoropt.profiling.hardware import named
from tensoropt.program.memory import peak
from tensoropt.sharding.resharding import PathFinder


@pytest.mark.parametrize("name", models.FUNCTIONS)
def test_peak_equals_that_of_replaying_all_micro_batches(
    name: str, monkeypatch: pytest.MonkeyPatch, everything: bool
) -> None:
    n_shorter, n_seeds = 0, 12 if everything else 6
    for seed in range(n_seeds):
        n, n_devices = (4, 8)[seed % 2], (1, 2, 4)[seed % 3]
        hardware, optimizer = named(f"v100-1x{n_devices}"), ("sgd", "adam")[seed // 2 % 2]
        mesh = hardware.mesh(n_devices)
        view = models.random_view(name, optimizer, n, mesh, 500 + seed)[1]
        model = models.sliced(name, optimizer, n).model
        costing = costing_of(model, hardware, mesh)
        short = peak.instructions_of(view, costing, PathFinder(Link()))
        with monkeypatch.context() as patched:
            patched.setattr(peak, "MOST_MICRO_BATCHES", n)
            whole = peak.instructions_of(view, costing, PathFinder(Link()))
        found, expected = (peak.peak_of_program(program) for program in (short, whole))
        assert found.n_bytes == expected.n_bytes and found.by_use == expected.by_use
        n_shorter += len(short) < len(whole)
    assert n_shorter == n_seeds
