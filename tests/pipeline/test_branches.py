"""Branches that begin in a stage run before it waits: one device's numbers, the order of what runs, predicted times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from accumulate import models
from helpers import zoo
from helpers.mpirun import run_ranks
from helpers.searches import find_with_stages
from pipeline.staged import random_cuts
from pipeline.test_cuts import slow_link, times_of

from tensoropt.ft import Budget
from tensoropt.ir.graph import SOURCES, VARIABLE
from tensoropt.search.request import Request
from tensoropt.search.stages.cuts import balanced
from tensoropt.search.stages.placement import Block, blocks_of
from tensoropt.search.stages.times import TimesBySize, estimated_us, transfers, works
from tensoropt.sharding.branches import branch_starts
from tensoropt.sharding.stages import Stages

BATCH = 8


def _tower(api: Any, words: Any, name: str, width: int, rows: int, n_layers: int) -> Any:
    table = api.get_variable(f"{name}/table", [rows, width], api.float64)
    x = api.reduce_mean(api.gather(table, words), axis=1)
    for layer in range(n_layers):
        w = api.get_variable(f"{name}/w{layer}", [x.shape[-1], 6], api.float64)
        x = api.tanh(api.matmul(x, w), name=f"{name}/layer{layer}")
    return x


def two_towers(api: Any = tf.compat.v1) -> zoo.Built:
    """Two towers of a table and dense layers; the softmax of their products over the batch, and a moving average."""
    queries, items = (api.placeholder(api.int64, [BATCH, 3], name=name) for name in ("queries", "items"))
    weights = api.placeholder(api.float64, [BATCH], name="weights")
    a, b = _tower(api, queries, "query", 4, 9, 3), _tower(api, items, "item", 10, 7, 3)
    scores = api.reduce_sum(a * b, axis=-1)
    loss = api.reduce_mean(api.square(scores - 1.0) * weights)
    average = api.get_variable("average", [], api.float64, initializer=api.zeros_initializer(), trainable=False)
    update = api.assign(average, 0.9 * average + 0.1 * loss)
    drawn = [np.random.default_rng([19, i]) for i in range(zoo.N_BATCHES)]
    inputs = {
        queries: tuple(rng.integers(0, 9, (BATCH, 3)) for rng in drawn),
        items: tuple(rng.integers(0, 7, (BATCH, 3)) for rng in drawn),
        weights: tuple(rng.uniform(0.5, 1.5, BATCH) for rng in drawn),
    }
    return zoo.Built(loss, inputs, (api.reduce_max(scores),), (update,))


def siamese(api: Any = tf.compat.v1) -> zoo.Built:
    """Twice the same layers, on two inputs, and a layer on the difference of their results."""
    x, y = (api.placeholder(api.float64, [BATCH, 5], name=name) for name in ("left", "right"))
    ws = [api.get_variable(f"w{layer}", [5, 5], api.float64) for layer in range(3)]
    results = []
    for given in (x, y):
        for w in ws:
            given = api.tanh(api.matmul(given, w))
        results.append(given)
    head = api.get_variable("head", [5, 3], api.float64)
    loss = api.reduce_mean(api.square(api.matmul(results[0] - results[1], head)))
    return zoo.Built(loss, {x: zoo._reals(21, BATCH, 5), y: zoo._reals(22, BATCH, 5)}, (api.reduce_max(results[0]),))


MODELS = {"two_towers": two_towers, "siamese": siamese}
CUTS = {"two_towers": "query/layer2", "siamese": "Tanh_2"}
"""The operator with which one branch ends, before the other one begins."""


def test_two_ranks_give_one_device_numbers_and_the_second_runs_its_branch_before_it_waits() -> None:
    result = run_ranks(2, "-m", "mpi4py", Path(__file__).with_name("branches_worker.py"), timeout=120)
    assert result.returncode == 0 and "branches on two ranks" in result.stdout, result.stdout + result.stderr


@pytest.mark.parametrize("way_us", [0.0, 50.0])
def test_two_towers_at_once_are_predicted_to_take_as_long_as_the_longer_one(way_us: float) -> None:
    model, hardware = zoo.record(two_towers, "adam").model, slow_link(1e15)
    hardware = replace(hardware, levels=(replace(hardware.levels[0], latency_us=way_us), *hardware.levels[1:]))
    times, stages = times_of(model, hardware, 1), Stages(model, (CUTS["two_towers"],))
    (sent,) = stages.awaited
    way = transfers(stages, hardware, blocks_of((1, 1)), 1).each[0]
    first_tower, second = works(stages, (times, times))
    tower = [times.of[name] for name in stages.early[1] if name in times.of]
    assert second.early == pytest.approx(sum(each.forward for each in tower)) and second.early > 0.5 * second.forward
    assert sum("MatMul" in name for name in stages.early[1]) == 3 and sent.tensor == "query/layer2:0"
    head, head_back = second.forward - second.early, second.backward - second.late
    assert second.late == pytest.approx(sum(each.backward for each in tower))
    middle = max(first_tower.forward + way, second.early) + head + head_back
    ends = middle + way + first_tower.backward + first_tower.after, middle + second.late + second.after
    assert estimated_us(stages, hardware, blocks_of((1, 1)), (times, times)) == pytest.approx(max(ends))


def test_places_for_branches_are_tried_however_long_the_longest_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first tower is the shorter one, and sends more at its end: by sums alone other places come first."""
    monkeypatch.setattr("tensoropt.search.stages.cuts.MOST_TRIED", 1)
    monkeypatch.setattr("tensoropt.search.stages.cuts.FEWEST_TRIED", 1)
    times = TimesBySize(zoo.record(two_towers, "adam").model, slow_link(1e12), 1)
    assert balanced([[Block(0, 1)], [Block(1, 1)]], times).stages.cuts == (CUTS["two_towers"],)


def test_branches_begin_with_the_first_layer_of_each_tower() -> None:
    assert branch_starts(zoo.record(siamese, "adam").model.graph) == {"MatMul", "MatMul_3"}


def early_of(stages: Stages, index: int) -> frozenset[str]:
    """Return what a stage runs early: by all operators in order, those that need nothing that is awaited."""
    graph, members = stages.whole.graph, stages.members[index]
    waits = {each.tensor for each in stages.awaited if each.target == index}
    if not waits:
        return frozenset()
    found, of_branches = [], set[str]()
    for op in graph.operators.values():
        operands = {tensor.name for _, tensor in op.operands}
        results = [tensor.name for tensor in op.outputs]
        if op.name not in members or op.type in SOURCES:
            continue
        if op.updates is not None or op.controls or waits & operands:
            waits.update(results)
        elif operands & of_branches or op.name in branch_starts(graph):
            of_branches.update(results)
            found += op.outputs if op.name not in stages.ahead.lookups else []
    return frozenset(graph.ancestors(found)) & members


@pytest.mark.parametrize(("name", "seed"), [(name, seed) for name in [*models.FUNCTIONS, *MODELS] for seed in range(5)])
def test_what_runs_early_needs_nothing_that_is_awaited(name: str, seed: int) -> None:
    recorded = models.recorded(name, "adam") if name in models.FUNCTIONS else zoo.record(MODELS[name], "adam")
    n_trained = sum(op.is_trainable for op in recorded.graph.variables)
    for n_stages in range(2, min(3, n_trained) + 1):
        stages = random_cuts(recorded, n_stages, seed)
        assert stages.early == tuple(early_of(stages, index) for index in range(n_stages))


@pytest.mark.parametrize("name", [*models.FUNCTIONS, *MODELS])
def test_models_without_branches_have_nothing_beside_and_program_order(name: str) -> None:
    recorded = models.recorded(name, "adam") if name in models.FUNCTIONS else zoo.record(MODELS[name], "adam")
    if sum(op.is_trainable for op in recorded.graph.variables) < 2:
        return
    for seed in range(4):
        stages = random_cuts(recorded, 2, seed)
        for index, early in enumerate(stages.early):
            own = [op for op in stages.models[index].graph.operators if op in recorded.graph.operators]
            in_order = [op for op in recorded.graph.operators if op in stages.members[index]]
            variables = [op for op in in_order if recorded.graph.operators[op].type == VARIABLE]
            first = {*early, *variables} if early else set(own)
            assert own == sorted(in_order, key=lambda op: (op not in variables and bool(early), op not in first))
            assert [op.name for op in stages.models[index].graph.variables] == variables
            assert not early or (index == 1 and name not in ("mlp", "attention", "windows", "dropping_out"))


@pytest.mark.parametrize(("name", "takes_it"), [("two_towers", True), ("attention", False)])
def test_the_batch_is_taken_at_once_too_where_branches_are_long(name: str, takes_it: bool) -> None:
    model = (zoo.record(two_towers, "adam") if takes_it else models.recorded(name, "adam")).model
    device = slow_link(1e10).device
    slow = replace(device, flops_per_s=dict.fromkeys(device.flops_per_s, 1e9), memory_bytes_per_s=1e9)
    found = find_with_stages(Request(model, slow_link(1e10, device=slow), None, budget=Budget(seconds=0)), 2, (2,))
    assert (1 in {each.micro_batches for each in found.searched}) == takes_it
    assert (found.plan(found.fastest_within(None), "mini_time").micro_batches == 1) == takes_it
