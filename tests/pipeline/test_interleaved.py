"""Interleaved stages: their orders, what their submeshes need in memory, how they are searched, and what is refused."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from accumulate import models
from helpers.large import first
from helpers.searches import find_with_stages
from helpers.strategies import Link
from pipeline.orders import interleaved, makespan
from pipeline.replays import bytes_of_passes, with_parameters
from pipeline.staged import random_cuts, random_stage_view

from tensoropt.common.errors import InputError
from tensoropt.costs.operator_costs import costing_of
from tensoropt.ft import Budget
from tensoropt.plan.frontier import Frontier
from tensoropt.plan.plan import Plan
from tensoropt.profiling.hardware import named
from tensoropt.program.memory.pass_memory import Messages, pass_memory, peak_together
from tensoropt.program.orders.interleaved import INTERLEAVED, interleaved_orders, most_in_flight, tried_interleavings
from tensoropt.program.orders.passes import BACKWARD, FORWARD, Pass, merged
from tensoropt.program.orders.schedule import StepOrder, tried_orders
from tensoropt.report.reading import read_points
from tensoropt.runtime.execution import execute
from tensoropt.runtime.other_programs import peak_beside
from tensoropt.runtime.ranks import Processes
from tensoropt.search.frontiers.model_frontier import ModelFrontier
from tensoropt.search.request import Request, request_of
from tensoropt.search.stages.memory import StageCosts, bytes_together, ends_of
from tensoropt.search.stages.placement import interleaved_blocks
from tensoropt.sharding.resharding import PathFinder

SHARED = [(2, 4), (2, 6), (3, 6), (4, 8), (5, 10), (2, 8), (3, 9)]
"""Numbers of submeshes and of stages."""


def request(
    name: str = "attention", cluster: str = "v100-1x2", force: object = None, micro_batches: int | None = None
) -> Request:
    model = models.recorded(name, "adam").model
    asked = request_of(model, named(cluster), None, force or {}, micro_batches=micro_batches)
    return replace(asked, budget=Budget(seconds=0))


def frontier_of(asked: Request, stages: tuple[int, ...] = (4,)) -> Frontier:
    return find_with_stages(asked, max(asked.hardware.parallelisms()), stages, "interleaved")


# Orders


@pytest.mark.parametrize(("n_submeshes", "n_stages"), SHARED)
def test_all_orders_that_are_tried_have_an_end_and_hold_what_they_tell(n_submeshes: int, n_stages: int) -> None:
    for n in range(1, 18):
        tried = tried_interleavings(n_stages, n, n_submeshes)
        assert tried and tried[0].per_round == n // max(1, n // n_submeshes)
        for each in tried:
            orders = interleaved_orders(n_stages, n, each)
            found = merged(orders)
            assert set(found) == {Pass(*run) for run in product(range(n_stages), range(n), (FORWARD, BACKWARD))}
            assert len(found) == 2 * n_stages * n
            told = most_in_flight(n_stages, orders)
            for submesh, order in enumerate(orders):
                assert {run.stage for run in order} == set(range(submesh, n_stages, n_submeshes))
                alive = np.cumsum([1 if run.work == FORWARD else -1 for run in order])
                assert alive.max() == each.ahead[submesh] and alive[-1] == 0
                for stage in range(submesh, n_stages, n_submeshes):
                    own = [(run.stage == stage) * (1 if run.work == FORWARD else -1) for run in order]
                    assert np.cumsum(own).max() == told[stage]


@pytest.mark.parametrize(("n_submeshes", "n_stages"), SHARED)
def test_the_papers_order_waits_for_one_stage_of_each_submesh(n_submeshes: int, n_stages: int) -> None:
    """With equal stages and as many micro-batches as submeshes, or a multiple: a v-th of what 1F1B waits."""
    for rounds in (1, 2, 3):
        n = rounds * n_submeshes
        order = tried_orders(INTERLEAVED, n_stages, n, n_submeshes)[0]
        time = makespan(order, [1.0] * n_stages, [2.0] * n_stages, [0.0] * (n_stages - 1))
        assert time == 3.0 * (n * n_stages // n_submeshes + n_submeshes - 1)


def test_larger_rounds_hide_a_slow_link() -> None:
    times = {}
    for order in tried_orders(INTERLEAVED, 4, 8, 2):
        time = makespan(order, [1.0] * 4, [2.0] * 4, [1.0] * 3)
        times[order.interleaving.per_round] = min(time, times.get(order.interleaving.per_round, time))
    assert times[2] > times[4] >= times[8]


# Memory


@pytest.mark.parametrize("seed", first(6, range(200)))
def test_the_peak_of_stages_that_share_a_submesh_is_that_of_replaying_both(seed: int) -> None:
    rng = random.Random(seed)
    model = models.recorded(rng.choice(("attention", "mlp")), rng.choice(("sgd", "adam")))
    stages, n = random_cuts(model, 4, seed), rng.choice((2, 4, 8))
    order, submesh = interleaved(rng, 4, n, 2), rng.randrange(2)
    hardware = named("v100-1x2")
    mesh, passes = hardware.mesh(2), order.orders[submesh]
    memories, replays = {}, {}
    for stage in (submesh, submesh + 2):
        part = stages.models[stage]
        view = random_stage_view(part, n, mesh, seed + stage, (0, 1), 0.3).per_micro_batch
        costing, ends = costing_of(part.in_micro_batches(n), hardware, mesh), ends_of(part, rng.random() < 0.5)
        memories[stage] = pass_memory(view, costing, PathFinder(Link()), ends), Messages()
        replays[stage] = bytes_of_passes(view, costing, ends, [each for each in passes if each.stage == stage])
    found = peak_together(memories, passes, n)
    assert found == _peak_of_replays(replays, with_parameters(passes))
    # More than what one needs beside the other's variables, less than what both need at once.
    own = {stage: [each for each in passes if each.stage == stage] for stage in memories}
    alone = [peak_together({stage: each}, own[stage], n) for stage, each in memories.items()]
    assert max(alone) < found <= sum(alone)
    # Messages wait beside what is alive, as many as the stage that sends them has in flight.
    waiting = {stage: (memory, Messages(0, ((1000, n),))) for stage, (memory, _) in memories.items()}
    assert found <= peak_together(waiting, passes, n) <= found + 2 * 1000 * n


def _peak_of_replays(replays: dict[int, list[np.ndarray]], passes: list[Pass]) -> int:
    """Return the most that is alive at once where passes of two stages run in an order."""
    alive = {stage: int(parts[1][0]) for stage, parts in replays.items()}
    next_pass, most = dict.fromkeys(replays, 1), 0
    for each in passes:
        (other,) = replays.keys() - {each.stage}
        parts, of_other = replays[each.stage], alive[other]
        if next_pass[other] == len(replays[other]) - 1:  # it has run its passes, and may update meanwhile
            of_other = max(of_other, *(int(replays[other][end].max()) for end in (0, -1)))
        most = max(most, int(parts[next_pass[each.stage]].max()) + of_other)
        next_pass[each.stage] += 1
        alive[each.stage] = int(parts[next_pass[each.stage]][0])
    held = {stage: max(int(parts[1][0]), alive[stage]) for stage, parts in replays.items()}
    outside = [max(int(parts[0].max()), int(parts[-1].max())) - held[stage] for stage, parts in replays.items()]
    return max(most, sum(held.values()) + max(outside))


# Searches


def test_stages_are_on_submeshes_in_turn_and_a_plan_reads_back(tmp_path) -> None:
    found = frontier_of(request(cluster="v100-1x4"))
    plan = found.plan(found.fastest_within(None), "mini_time")
    assert plan.schedule == "interleaved" and plan.interleaving is not None
    assert [stage.devices for stage in plan.stages] == [(0, 1), (2, 3), (0, 1), (2, 3)]
    assert plan.parallelism == 4 and plan.submeshes == ((0, 1), (2, 3))
    assert plan.stages[0].peak_bytes == plan.stages[2].peak_bytes
    assert "4 stages on 2+2 devices" in plan.brief() and "by interleaved" in plan.brief()
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again.orders == plan.orders and again.to_json() == plan.to_json()
    value = plan.to_json()
    for damaged in (
        {**value["schedule"], "ahead": [1, 1]},  # passes would wait for each other
        {**value["schedule"], "n_submeshes": 3, "ahead": [1, 1, 1]},
        {**value["schedule"], "per_round": 0},
        {**value["schedule"], "per_round": 2.5},
        {**value["schedule"], "ahead": "34"},
    ):
        with pytest.raises(ValueError, match=r"wait for each other|can't be interleaved"):
            Plan.from_json({**value, "schedule": damaged})
    (tmp_path / "plan.json").write_text(json.dumps({**value, "schedule": {**value["schedule"], "ahead": [1, 1]}}))
    for read in (Plan.load, read_points):  # the grid stays in lines
        with pytest.raises(InputError, match=r"damaged.*in brackets.*\nsubmesh 0 .*\[.*\].*\nsubmesh 1 .*\[.*; save it"):
            read(tmp_path / "plan.json")
    more = {**value["schedule"], "ahead": [each + 1 for each in value["schedule"]["ahead"]]}
    with pytest.raises(ValueError, match=r"don't have as many micro-batches in flight as it says|wait for each other"):
        Plan.from_json({**value, "schedule": more})
    with pytest.raises(ValueError, match="don't fit together"):
        Plan.from_json({**value, "stages": [value["stages"][i] for i in (0, 1, 3, 2)]})


def test_the_peak_of_a_plan_is_of_both_its_stages() -> None:
    found = frontier_of(request("mlp"))
    for number in {0, len(found.points_of) - 1}:
        point = found.points_of[number]
        for stage in range(2):
            alone = [passes_of(point.frontiers[each], point.numbers[each], each, point.order) for each in (stage, stage + 2)]
            assert max(alone) < point.stage_bytes[stage] == point.stage_bytes[stage + 2] <= sum(alone)
        compute_ns = [int(f.costs.compute_ns[n]) for f, n in zip(point.frontiers, point.numbers, strict=True)]
        assert round(point.costs.compute_time_us * 1e3) == max(compute_ns[0] + compute_ns[2], compute_ns[1] + compute_ns[3])


def test_what_runs_beside_and_what_is_told_of_ranks_is_of_all_stages_on_a_device() -> None:
    asked = request("mlp")
    plan, model = frontier_of(asked).plan(0), models.recorded("mlp", "adam")
    values = model.first_values
    execution = execute(plan, model.model, lambda name: values[name], Processes(0, 1, ("here",)), "emulated")
    assert len(execution.engine.local_parameter_bytes) == plan.parallelism == 2
    at_once = [peak_beside(execution, model.model, asked.hardware, n) for n in (plan.micro_batches, 1)]
    assert at_once[0] >= plan.peak_bytes and at_once[1] > 0


def passes_of(frontier: ModelFrontier, number: int, stage: int, order: StepOrder) -> int:
    """Return the peak of a stage by itself, in its passes' order."""
    model = frontier.model
    own = [each for each in order.orders[order.submeshes[stage]] if each.stage == stage]
    memory, costs = frontier.pass_memory(np.array([number]), ends_of(model, divides=False)), StageCosts.of(frontier)
    return int(peak_together({stage: (memory, costs.messages(order).take([number]))}, own, order.n_micro_batches)[0])


def test_stages_of_a_submesh_take_points_within_the_bytes_that_they_need_together() -> None:
    of_cut = frontier_of(request("mlp"), (4,)).searched[-1]
    for combined in of_cut.combinations:
        order, costs = combined.order, of_cut.stage_costs
        sums = [of_stage.bytes_of(stage, order)[combined.points[stage]] for stage, of_stage in enumerate(costs)]
        for pair in ((0, 2), (1, 3)):
            both = bytes_together({stage: costs[stage] for stage in pair}, order, dict(enumerate(combined.points)))
            assert (combined.stage_bytes[list(pair)] == both).all() and (both <= sum(sums[stage] for stage in pair)).all()
        assert (np.diff(combined.mem_bytes) > 0).all() and (np.diff(combined.time_us) < 0).all()


def test_devices_are_as_many_equal_submeshes_as_possible() -> None:
    def sizes(cluster: str, n_stages: int) -> list[tuple[int, int]] | None:
        hardware = named(cluster)
        blocks = interleaved_blocks(hardware, hardware.n_devices, n_stages)
        return blocks and [tuple(block) for block in blocks]

    assert sizes("v100-1x2", 4) == [(0, 1), (1, 1)] * 2
    assert sizes("v100-1x2", 8) == [(0, 1), (1, 1)] * 4
    assert sizes("v100-2x4", 8) == [(0, 2), (2, 2), (4, 2), (6, 2)] * 2
    assert sizes("v100-2x4", 6) == [(0, 4), (4, 4)] * 3  # eight devices aren't three equal submeshes
    assert sizes("v100-1x2", 2) is sizes("v100-1x2", 5) is sizes("v100-1x1", 4) is None


@pytest.mark.parametrize(
    ("options", "stages", "message"),
    [({}, (2,), r"2 stages can't be interleaved on 2 devices: two submeshes or more .*; ask for 4 or 6 stages, or for"),
     ({"cluster": "v100-1x3"}, (4,), r"4 stages can't be interleaved on 3 devices: .*; ask for 6 or 9 stages, or for"),
     ({"micro_batches": 1}, (4,), "interleaved stages take a batch in micro-batches, got one; ask for more, or for"),
     ({}, (5,), "5 stages can't be interleaved on 2 devices"),
     ({"cluster": "v100-1x1"}, (4,), r"4 stages can't be interleaved on 1 device: .*; use another one"),
     ({"force": {"MatMul": {"devices": [0]}}}, (4,), "has stages share their devices, and operators are placed")],
)  # fmt: skip
def test_what_cant_be_interleaved_is_refused(options: dict, stages: tuple[int, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        frontier_of(request(**options), stages)


def test_numbers_of_stages_that_cant_be_interleaved_are_left_out_beside_others() -> None:
    found = frontier_of(request("mlp"), (2, 4))
    assert {point.n_stages for point in found.points_of} == {4}
    assert "2 stages can't be interleaved on 2 devices" in found.summary()
