"""Peaks that compiled kernels count are those of the step program, to the byte."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import accumulate.models as in_micro_batches
import composite.models
import numpy as np
import pytest
import tensorflow as tf
from helpers import zoo
from helpers.fast_peaks import peak_bytes
from helpers.large import first
from helpers.strategies import random_router, random_strategy

from tensoropt.costs.operator_costs import costing_of
from tensoropt.plan.build import cost_entries
from tensoropt.profiling.hardware import named
from tensoropt.program.fast_peak import Peaks, array_layout, peaks
from tensoropt.program.memory.peak import peak_of
from tensoropt.program.simulator.actions import StepActions
from tensoropt.program.simulator.step_graph import step_graph
from tensoropt.program.step import step_program
from tensoropt.program.tasks import REMATERIALIZED
from tensoropt.sharding.resharding import PathFinder
from tensoropt.sharding.strategy import STAYS, StrategyView

BY_NCCL = replace(named("v100-2x3"), run_by="nccl")
HARDWARE = (named("v100-1x4"), named("v100-2x2"), BY_NCCL)
MODELS = (zoo.mlp, zoo.cnn, zoo.fused_cnn, zoo.attention, zoo.windows, zoo.fourier, zoo.broadcasting)
MODELS = (*MODELS, *composite.models.MODELS)
SHARES = ((0.0, 0.0), (0.5, 0.0), (0.3, 0.3), (0.7, 0.8))


@pytest.mark.parametrize("optimizer", first(1, ("adam", "sgd", "momentum")))
@pytest.mark.parametrize("function", MODELS)
def test_random_strategies_have_the_peak_of_their_program(
    function: Callable[[], zoo.Built], optimizer: str, everything: bool
) -> None:
    model = zoo.record(function, optimizer)
    for number, hardware in enumerate(HARDWARE):
        mesh = hardware.mesh(hardware.n_devices)
        costing = costing_of(model.model, hardware, mesh)
        of_model = [Peaks(model.model, costing, random_router(seed)) for seed in range(2)]
        for seed in range(4 if everything else 2):
            regathered, rematerialized = SHARES[(seed + number) % len(SHARES)]
            view = random_strategy(model, mesh, seed, None, regathered, rematerialized)
            peaks = of_model[seed % 2]
            for _ in range(2):  # with new rows, and with known ones
                assert peak_bytes(peaks, view) == peak_of(view, costing, peaks.path_finder).n_bytes, (seed, hardware.name)


@pytest.mark.parametrize("name", in_micro_batches.FUNCTIONS)
def test_random_strategies_in_micro_batches_have_the_peak_of_their_program(name: str, everything: bool) -> None:
    for n in (2, 4, 8) if everything else (2, 8):
        model = in_micro_batches.sliced(name, "adam", n)
        for number, hardware in enumerate(HARDWARE[:2]):
            mesh = hardware.mesh(hardware.n_devices)
            counter = Peaks(model.model, costing_of(model.model, hardware, mesh), random_router(n))
            for seed in range(16 if everything else 2):
                regathered, rematerialized = SHARES[(seed + 2 * number + n // 8) % len(SHARES)]
                shares = {"share_regathered": regathered, "share_rematerialized": rematerialized}
                view = in_micro_batches.random_view(name, "adam", n, mesh, seed, **shares)[1]
                peak = peak_of(view, counter.costing, counter.path_finder)
                assert peak_bytes(counter, view) == peak.n_bytes, (n, hardware.name, seed)


def equal_layers(api: Any = tf.compat.v1) -> zoo.Built:
    """Four equal layers on a residual stream, whose tensors have several consumers."""
    x = api.placeholder(api.float64, [8, 12], name="x")
    stream = x
    for layer in range(4):
        hidden = api.tanh(api.matmul(stream, api.get_variable(f"w{layer}", [12, 12], api.float64)))
        stream = stream + hidden * api.sigmoid(hidden)
    values = np.random.default_rng(0).normal(size=(zoo.N_BATCHES, 8, 12))
    return zoo.Built(api.reduce_mean(stream * stream), {x: tuple(values)}, ())


def test_rows_of_one_layer_count_the_peaks_of_equal_ones() -> None:
    """Each layer has choices of its own, and takes the rows that another layer with these choices has made."""
    model = zoo.record(equal_layers, "adam")
    mesh = HARDWARE[1].mesh(4)
    costing = costing_of(model.model, HARDWARE[1], mesh)
    counter = Peaks(model.model, costing, random_router(0))
    for seed in range(24):
        view = random_strategy(model, mesh, seed, None, *SHARES[seed % len(SHARES)])
        assert peak_bytes(counter, view) == peak_of(view, costing, counter.path_finder).n_bytes, seed
    tables = {id(table) for table in counter.rows._known}
    assert len(tables) < 0.6 * counter.rows.outline.n_sites


def test_what_the_memory_of_an_arena_held_before_makes_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket that begins with -1 gradients is never sent: the kernel would not return."""
    made = peaks.arena_of

    def arena_of(outline: object, n_buckets: int) -> np.ndarray:
        arena = made(outline, n_buckets)
        arena[array_layout.N_ARENA :] = -1
        return arena

    monkeypatch.setattr(peaks, "arena_of", arena_of)
    n_buckets = 0
    for function in (zoo.mlp, zoo.attention, composite.models.MODELS[0]):
        model = zoo.record(function, "adam")
        mesh = HARDWARE[1].mesh(4)
        costing = costing_of(model.model, HARDWARE[1], mesh)
        for seed in range(4):
            view = random_strategy(model, mesh, seed, None, *SHARES[seed])
            counter = Peaks(model.model, costing, random_router(0))
            assert peak_bytes(counter, view) == peak_of(view, costing, counter.path_finder).n_bytes, (function, seed)
            n_buckets += counter.rows.n_buckets
    assert n_buckets


def test_what_is_made_again_is_decided_in_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Program, fast peak, a plan's rows and the simulator change with its answer, and with it alone."""
    model, hardware = zoo.record(zoo.attention, "adam"), named("v100-2x2")
    costing = costing_of(model.model, hardware, hardware.mesh())
    finder, view = PathFinder(costing.reshardings.steps), random_strategy(model, hardware.mesh(), 1, share_regathered=0.7)
    actions, graph = StepActions(costing, finder), step_graph(view, finder)

    def answers() -> tuple[int, int, int, int]:
        peaks = Peaks(model.model, costing, finder)
        assert peak_bytes(peaks, view) == peak_of(view, costing, finder).n_bytes
        n_again = sum(task.direction == REMATERIALIZED for task in step_program(view, finder).tasks)
        n_run = sum(map(bool, actions.chains(view, graph.nodes)))
        return n_again, sum(entry.is_regathered for entry in cost_entries(view)), n_run, peak_bytes(peaks, view)

    before, decide = answers(), StrategyView.residual
    kept = {"copy": STAYS, "shared": STAYS, "is_with_source": False}
    monkeypatch.setattr(StrategyView, "residual", lambda *operand: decide(*operand)._replace(**kept))
    after = answers()
    assert before[0] > after[0] == 0 and before[1] > after[1] == 0
    assert before[2] > after[2] and before[3] != after[3]
