"""Cuts of least memory: none of all others needs less."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import accumulate.models as models
import pytest
from helpers.searches import find_with_stages

from tensoropt import zoo
from tensoropt.ft import Budget
from tensoropt.ir.graph import PLACEHOLDER, SOURCES
from tensoropt.profiling.hardware import named
from tensoropt.search.candidates.candidate import least_memory
from tensoropt.search.request import Request
from tensoropt.search.stages.cuts import balanced
from tensoropt.search.stages.needs import StageNeeds
from tensoropt.search.stages.placement import blocks_of
from tensoropt.search.stages.times import TimesBySize
from tensoropt.sharding.model import Model
from tensoropt.tools.offline import record


def needs_of(model: Model) -> StageNeeds:
    """Return what a model needs in four micro-batches, without rematerialization."""
    return StageNeeds.of(TimesBySize(model, named("v100-1x1"), 4), [1], rematerializes=False)


def most_bytes(model: Model, n_micro_batches: int, cuts: tuple[str, ...]) -> int:
    """Return the bytes of the stage that needs the most, of what it uses first, saves and is sent."""
    graph = model.in_micro_batches(n_micro_batches).graph
    read = {
        dict(graph.operators[name].operands)[position].name
        for name, position in model.backward.residual_operands
        if name in graph.operators
    } | model.backward.residual_results  # fmt: skip
    needed, stage, seen = [0] * (len(cuts) + 1), 0, set()
    program = [op for op in graph.step_operators if op.type not in SOURCES and op.updates is None]
    last = {tensor.name: op.name for op in program for _, tensor in op.operands}
    alive: dict[str, int] = {}
    for op in program:
        in_flight = min(len(cuts) + 1 - stage, n_micro_batches)
        needed[stage] += in_flight * sum(tensor.mem_bytes for tensor in op.outputs if tensor.name in read)
        for _, tensor in op.operands:
            source = graph.producers[tensor.name]
            if source.is_trainable and source.name not in seen:
                (update,) = graph.full_batch.updates[source.name]
                needed[stage] += (2 + update.slots) * tensor.mem_bytes
            if source.type == PLACEHOLDER and source.name not in seen:
                needed[stage] += graph.full_batch.tensors[tensor.name].mem_bytes
            seen.add(source.name)
        alive |= {tensor.name: tensor.mem_bytes for tensor in op.outputs}
        alive = {name: n_bytes for name, n_bytes in alive.items() if last.get(name, op.name) != op.name}
        if stage < len(cuts) and op.name == cuts[stage]:
            stage += 1
            needed[stage] += min(len(cuts) + 1 - stage, n_micro_batches) * sum(alive.values())
    return max(needed)


def trains_everywhere(model: Model, cuts: tuple[str, ...]) -> bool:
    """Return whether each stage uses a variable that no earlier one does."""
    graph, stage, seen, trains = model.graph, 0, set(), [False] * (len(cuts) + 1)
    for op in graph.step_operators:
        if op.type in SOURCES or op.updates is not None:
            continue
        used = {graph.producers[t.name].name for _, t in op.operands if graph.producers[t.name].is_trainable}
        trains[stage] |= bool(used - seen)
        seen |= used
        stage += stage < len(cuts) and op.name == cuts[stage]
    return all(trains)


@pytest.mark.parametrize("n_stages", [2, 3])
@pytest.mark.parametrize("name", ["mlp", "attention", "tied"])
def test_no_other_cut_needs_less(name: str, n_stages: int) -> None:
    model = models.recorded(name, "adam").model
    operators = [op.name for op in model.graph.step_operators if op.type not in SOURCES and op.updates is None]
    all_cuts = [cuts for cuts in itertools.combinations(operators[:-1], n_stages - 1) if trains_everywhere(model, cuts)]
    found = least_memory(model, needs_of(model), blocks_of((1,) * n_stages), 4, {})
    assert found is not None and found.cuts in all_cuts
    least = min(most_bytes(model, 4, cuts) for cuts in all_cuts)
    assert most_bytes(model, 4, found.cuts) == least


def test_a_model_of_too_few_variables_has_none() -> None:
    model = models.recorded("dropping_out", "sgd").model
    assert least_memory(model, needs_of(model), blocks_of((1,) * 5), 4, {}) is None


def test_stages_with_more_in_flight_have_fewer_layers_within_a_limit() -> None:
    hardware, n_stages = named("v100-1x4"), 4
    model = record(lambda: zoo.gpt3(layers=16, width=64, heads=4, batch=64, length=256, vocabulary=64), "gpt3", "adam").model
    times = TimesBySize(model, hardware, 16)
    needs, blocks = StageNeeds.of(times, [1]), blocks_of((1,) * n_stages)
    choices = [[each] for each in blocks]
    plain = balanced(choices, times)
    limit = 0.5 * next(needs.n_bytes(0, needs.names.index(plain.stages.cuts[0]) + 1, n_stages))
    cut = balanced(choices, times, needs=needs, limit_bytes=int(limit))
    ends = [0, *(needs.names.index(name) + 1 for name in cut.stages.cuts), len(needs.names)]
    assert ends[1] < needs.names.index(plain.stages.cuts[0]) + 1 and cut.time_us > plain.time_us
    in_flight = range(n_stages, 0, -1)
    assert all(needs.least_bytes(*each) <= limit for each in zip(ends[:-1], ends[1:], in_flight, strict=True))
    assert next(needs.n_bytes(0, ends[1], n_stages)) > limit


def test_a_larger_limit_never_gives_a_slower_plan() -> None:
    model = models.recorded("tied", "adam").model
    asked = Request(model, named("v100-1x4"), None, micro_batches=4, budget=Budget(seconds=0.0))
    times_us = []
    for limit in (5_000, 5_430, 6_000, 7_300, None):
        found = find_with_stages(replace(asked, limit_bytes=limit), 4, (2,))
        fastest = found.fastest_within(limit)
        times_us.append(math.inf if fastest is None else found.points_of[fastest].time_us)
    assert times_us == sorted(times_us, reverse=True) and len(set(times_us)) > 3
