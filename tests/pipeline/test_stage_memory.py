"""The peak of a stage's passes in any order, against a replay of all micro-batches in that order."""

from __future__ import annotations

import random
from dataclasses import replace

import accumulate.models as models
import numpy as np
import pytest
from helpers.fast_peaks import passes
from helpers.large import first
from helpers.strategies import Link
from pipeline.orders import OF_OWN_SUBMESHES
from pipeline.replays import bytes_of_passes
from pipeline.staged import random_cuts, random_stage_view

from tensoropt.costs.operator_costs import costing_of
from tensoropt.profiling.hardware import named
from tensoropt.program.fast_peak import Peaks
from tensoropt.program.memory.pass_memory import Messages, pass_memory, peak_together
from tensoropt.program.orders.passes import PARAMETERS
from tensoropt.program.orders.schedule import StepOrder
from tensoropt.search.stages.memory import ends_of
from tensoropt.sharding.resharding import PathFinder


@pytest.mark.parametrize("seed", first(8, range(400)))
def test_the_peak_of_passes_in_a_random_order_is_that_of_replaying_all(seed: int) -> None:
    rng = random.Random(seed)
    model = models.recorded(rng.choice(list(models.FUNCTIONS)), rng.choice(("sgd", "adam")))
    n_trained = sum(op.is_trainable for op in model.graph.variables)
    stages = random_cuts(model, min(n_trained, rng.randint(2, 3)), seed)
    n, n_devices, index = rng.choice((2, 4, 8)), rng.choice((1, 2, 4)), rng.randrange(stages.n)
    run_by = rng.choice(("mpi", "tensorflow", "nccl"))
    hardware = replace(named(f"v100-1x{n_devices}"), exposed_share=rng.choice((0.5, 1.0)), run_by=run_by)
    mesh, sliced = hardware.mesh(n_devices), stages.models[index].in_micro_batches(n)
    view = random_stage_view(stages.models[index], n, mesh, seed, tuple(range(n_devices)), 0.3).per_micro_batch
    costing = costing_of(sliced, hardware, mesh)
    schedule, divides = rng.choice(OF_OWN_SUBMESHES), rng.random() < 0.5
    in_flight, deferred = ([rng.randint(least, n) for _ in range(stages.n)] for least in (1, 0))
    order = StepOrder(schedule, n, tuple(in_flight), tuple(deferred)).orders[index]
    divides = divides or any(each.work == PARAMETERS for each in order)
    ends = ends_of(stages.models[index], divides)
    slow, peaks = pass_memory(view, costing, PathFinder(Link()), ends), Peaks(sliced, costing, PathFinder(Link()))
    counted = passes(peaks, view, ends)
    for of_passes, of_slow in zip(vars(counted).values(), vars(slow).values(), strict=True):
        np.testing.assert_array_equal(of_passes, of_slow)
    found = peak_together({index: (slow, Messages())}, order, n)
    assert found == max(int(each.max()) for each in bytes_of_passes(view, costing, ends, order))
