"""Stages that differ in names alone are searched once, and each has the points that a search of its own finds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.large import first

from tensoropt import zoo
from tensoropt.ft import Budget
from tensoropt.profiling.hardware import named
from tensoropt.search.candidates.search_cut import AlikeStages, form_of
from tensoropt.search.frontiers.find_frontier import searched
from tensoropt.search.frontiers.model_frontier import ModelFrontier
from tensoropt.search.problem.strategy_problem import StrategyProblem
from tensoropt.search.request import Request
from tensoropt.sharding.stages import Stages
from tensoropt.tools.offline import record

N = 2
SIZES = {"batch": 8, "length": 4, "layers": 4, "width": 8, "heads": 2, "vocabulary": 16}


def fits(found: ModelFrontier) -> bool:
    return True


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    """One request for each of four stages of a GPT; the two in the middle have an equal layer each."""
    model = record(lambda: zoo.gpt3(**SIZES), "gpt3", "adam").model
    ends = [f"layer_{number}" for number in (1, 2, 3)]
    names = list(model.graph.operators)
    cuts = tuple(max((name for name in names if name.startswith(f"{end}/")), key=names.index) for end in ends)
    stages = Stages(model, cuts)
    hardware, budget = named("v100-1x4"), Budget(seconds=0.0)
    return [Request(each, hardware, None, micro_batches=N, budget=budget) for each in stages.models]


def test_equal_layers_alone_are_alike(requests: list[Request]) -> None:
    forms = [form_of(each.model.in_micro_batches(N), {}) for each in requests]
    assert len(set(forms)) == 3 and forms[1] == forms[2]
    other = form_of(requests[2].model.in_micro_batches(4), {})
    name = next(op.name for op in requests[2].model.graph.operators.values() if op.type == "MatMul")
    forced = form_of(requests[2].model.in_micro_batches(N), {name: {"n": 2}})
    assert len({forms[2], other, forced}) == 3


def check_equal(found: StrategyProblem, own: StrategyProblem) -> None:
    """Check that a problem that was taken over is the one that is built."""
    for (group, states), (expected, of_own) in zip(found.nodes, own.nodes, strict=True):
        assert [op.name for op in group.operators] == [op.name for op in expected.operators]
        assert states.configs == of_own.configs and np.array_equal(states.mem_bytes, of_own.mem_bytes)
    assert [(copy.tensor.name, copy.node) for copy in found.shared] == [(copy.tensor.name, copy.node) for copy in own.shared]
    assert [(each.copy, each.node) for each in found.choices] == [(each.copy, each.node) for each in own.choices]
    for one, other in zip(
        (*found.problem.nodes, *found.problem.edges), (*own.problem.nodes, *own.problem.edges), strict=True
    ):
        assert np.array_equal(one.mem_bytes, other.mem_bytes) and np.array_equal(one.time_ns, other.time_ns)


@pytest.mark.parametrize(("n", "n_devices"), first(1, [(N, 4), (1, 2)]))
def test_a_stage_like_another_has_the_points_and_plans_of_its_own_search(
    requests: list[Request], n: int, n_devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, requests = 0, [replace(each, micro_batches=n) for each in requests]

    def counted(*given: Any) -> object:
        nonlocal count
        count += 1
        return searched(*given)

    monkeypatch.setattr("tensoropt.search.candidates.search_cut.searched", counted)
    alike = AlikeStages()
    found = [alike.searched(each, n_devices, fits) for each in requests]
    assert count == 3
    own = searched(requests[2], n_devices)
    check_equal(found[2].built, own.built)
    assert np.array_equal(found[2].found.strategies, own.found.strategies)
    for point in (0, len(own) - 1):
        assert found[1].peak_bytes(point) == own.peak_bytes(point)
        assert found[2]._counter.known[own.found.strategies[point].tobytes()] == own.peak_bytes(point)
        plan, expected = (each.stage(point) for each in (found[2], own))
        assert plan.to_json() == expected.to_json()
        assert found[2].peak(point) == own.peak(point)
    alike.searched(replace(requests[2], micro_batches=4), n_devices, fits)
    alike.searched(replace(requests[2], hardware=named("v100-1x2")), n_devices // 2, fits)
    assert count == 5


def test_a_stage_that_must_rematerialize_is_not_like_one_that_need_not(requests: list[Request]) -> None:
    alike, (_, one, other, _) = AlikeStages(), (replace(each, wants_frontier=False) for each in requests)
    plain, whole = alike.searched(one, 4, fits), alike.searched(other, 4, lambda found: False)
    assert plain.built.transient is None and whole.built.transient is not None
    assert alike.searched(one, 4, fits).built.transient is not None
