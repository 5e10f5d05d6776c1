"""The frontier of plans with stages and without: minimal, never above the one without stages, its plans run as they say."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import accumulate.models as models
import numpy as np
import pytest
from helpers.large import first
from helpers.searches import fastest_that_fits, find_frontier, find_with_stages, plans_of
from pipeline.staged import random_cuts, tanh_layers

import tensoropt
from tensoropt.common.errors import InputError
from tensoropt.ft import Budget, LowerBound
from tensoropt.plan.frontier import Frontier
from tensoropt.plan.plan import Plan
from tensoropt.profiling.hardware import Hardware, Origin, named
from tensoropt.program.fast_peak import Peaks
from tensoropt.program.memory.pass_memory import peak_together
from tensoropt.program.orders.schedule import StepOrder
from tensoropt.report.differences import differences, differences_text
from tensoropt.report.frontier_rows import FrontierRows
from tensoropt.search.infeasible import why_too_large
from tensoropt.search.options import _fastest
from tensoropt.search.request import WORTH_STAGES, WORTH_TRYING, Request
from tensoropt.search.stages import memory as stage_memory
from tensoropt.search.stages.memory import StageCosts, ends_of, is_divided, needed_bytes
from tensoropt.search.stages.placement import blocks_of
from tensoropt.search.stages.points import SearchedStages
from tensoropt.search.stages.times import OperatorTimes, messages, transfers, works


@cache
def hardware(link: float) -> Hardware:
    """Four devices in two machines, with a link between these that is so much of that of V100s."""
    found = named("v100-2x2")
    slow, fast = found.levels
    return replace(found, levels=(replace(slow, bytes_per_s=slow.bytes_per_s * link), fast))


def request(name: str, link: float = 1e-3, **changed: object) -> Request:
    model = models.recorded(name, "adam").model
    return Request(model, hardware(link), None, budget=Budget(seconds=0), **changed)  # type: ignore[arg-type]


@cache
def frontier(name: str, counts: tuple[int, ...]) -> Frontier:
    return find_with_stages(request(name, micro_batches=4), 4, counts)


@pytest.mark.parametrize(
    ("name", "link"), first(1, [(name, link) for link in (1e-3, 1.0) for name in ("looking_up", "tied", "mlp", "attention")])
)
def test_the_frontier_with_stages_is_nowhere_above_the_one_without(name: str, link: float) -> None:
    found = find_with_stages(request(name, link), 4, (1, 2))
    assert {each.micro_batches for each in found.searched} == {1, 2, 4, 8}  # 1 of those without
    (alone, *_) = fastest_that_fits(request(name, link), 4)[1]
    for number, point in enumerate(alone.points):
        n_bytes = alone.peak_bytes(number)
        assert any(each.peak_bytes <= n_bytes and each.time_us <= point.time_us for each in found.points_of)
    assert list(np.diff(found.costs.mem_bytes) > 0) == list(np.diff(found.costs.time_ns) < 0) == [True] * (len(found) - 1)


def test_stages_are_on_the_frontier_over_a_slow_link() -> None:
    found = frontier("mlp", (1, 2))
    counts = [point.n_stages for point in found.points_of]
    assert [len(found.plan(counts.index(n)).stages) for n in (1, 2)] == [1, 2]
    assert found.smallest().peak_bytes == found.costs.mem_bytes[0]
    assert found.fastest().time_us == pytest.approx(found.points[-1].time_us, abs=1e-3)
    text = found.table()
    assert "stages" in text and "batches" in text
    bound_us = found.bound.time_ns[0] / 1e3
    assert f"no plan takes less than {bound_us:,.1f} us" in found.summary() and "gap at most " in found.summary()


def test_no_step_in_the_same_stages_and_memory_beats_a_bound() -> None:
    """Points of exact stages have no gap; with bounds that are a tenth below, no combination of points beats theirs."""
    found = frontier("mlp", (1, 2))
    assert found.gaps.max() < 0.2
    n_compared = 0
    for point in found.points_of:
        of_stages = []
        for each in point.frontiers:
            proven = each.certified
            bound = LowerBound(proven.mem_bytes, proven.time_ns * 9 // 10, "loosened")
            of_stages.append(replace(each, searched=replace(proven, bound=bound)))
        loose = replace(point.searched, frontiers=tuple(of_stages))
        chosen = np.array(point.numbers)[:, None]
        (bound_us,), (gap,) = (
            loose.bounds_us(chosen, point.order), loose.gaps(chosen, point.order, np.array([point.time_us]))
        )  # fmt: skip
        if point.n_stages > 1:
            assert point.gap == 0 and point.bound_us == pytest.approx(point.time_us)
            assert 0 < gap <= 1 / 9 + 1e-3 and bound_us < point.bound_us
        most = [each.found.mem_bytes[n] for each, n in zip(point.frontiers, point.numbers, strict=True)]
        for numbers in itertools.product(*(range(len(each)) for each in point.frontiers)):
            of_numbers = [each.found.mem_bytes[n] for each, n in zip(point.frontiers, numbers, strict=True)]
            if all(own <= other for own, other in zip(of_numbers, most, strict=True)):
                times_us = [float(each.costs.time_ns[n]) / 1e3 for each, n in zip(point.frontiers, numbers, strict=True)]
                time_us = times_us[0] if point.n_stages == 1 else point.searched.step_us(times_us, point.order)
                assert time_us >= bound_us * (1 - 1e-9)
                n_compared += 1
    assert n_compared > len(found)


@pytest.mark.parametrize("point", [0, -1])
def test_plans_of_points_have_their_costs(point: int) -> None:
    found = frontier("mlp", (2,))
    number = found.check_point(point)
    plan = found.plan(point)
    assert plan.frontier is found and plan.point == number
    assert (plan.peak_bytes, round(plan.time_us * 1e3)) == (found.costs.mem_bytes[number], found.costs.time_ns[number])
    assert Plan.from_json(plan.to_json()).to_json() == plan.to_json()


@pytest.mark.parametrize("name", first(1, ["mlp", "attention"]))
def test_a_plan_without_stages_is_explained_beside_those_with(name: str) -> None:
    found = frontier(name, (1, 2))
    number = next(i for i, point in enumerate(found.points_of) if point.n_stages == 1)
    point, plan = found.points_of[number], found.plan(number)
    assert point.n_stages == 1
    assert plan.frontier is found and plan.frontier_table() == found.table(number)
    alone = plans_of(point.frontiers[0]).plan(point.numbers[0]).explanation()
    told = {**plan.explanation(), "smaller": alone["smaller"], "faster": alone["faster"]}
    assert told == {**alone, "frontier": found.table(number).splitlines()}
    faster = plan.explanation()["faster"]
    assert faster is None or faster["peak_bytes"] == found.points_of[number + 1].peak_bytes
    # Any two plans are compared, and have the same members.
    staged = found.plan(next(i for i, point in enumerate(found.points_of) if point.n_stages == 2))
    told = differences(*(FrontierRows.of_plan(each.to_json()) for each in (plan, staged)))
    assert told["totals"]["stages"] == [1, 2] and told["only_before"] == told["only_after"] == []
    assert {op.name for op in plan.operators} == {op.name for op in staged.operators} and staged.mesh == plan.mesh
    assert staged.compute_time_us == max(stage.compute_time_us for stage in staged.stages) <= staged.time_us
    assert not any(name in staged.explain() for name in ("/stage_", "/received_"))  # which no user wrote
    assert "stage" in differences_text(told) and staged.n_collectives == told["totals"]["collectives_per_step"][1]


def searched(name: str) -> SearchedStages:
    return next(each for each in frontier(name, (1, 2)).searched if each.stages.n > 1)


@pytest.mark.parametrize("name", first(1, ["mlp", "attention"]))
def test_combinations_are_the_fastest_within_their_bytes(name: str) -> None:
    """Against each point of one stage with each of the other."""
    of_cut = searched(name)
    for combined in of_cut.combinations[:1]:
        all_of = []
        counted = [each.bytes_of(stage, combined.order) for stage, each in enumerate(of_cut.stage_costs)]
        for numbers in itertools.product(*(range(len(each)) for each in of_cut.frontiers)):
            n_bytes = max(of_stage[number] for of_stage, number in zip(counted, numbers, strict=True))
            chosen = zip(of_cut.frontiers, numbers, strict=True)
            searched_us = [each.points[number].time_us for each, number in chosen]
            all_of.append((n_bytes, of_cut.step_us(searched_us, combined.order)))
        for limit, time_us in zip(combined.mem_bytes, combined.time_us, strict=True):
            assert time_us == pytest.approx(min(time for n_bytes, time in all_of if n_bytes <= limit), rel=1e-12)
        assert combined.mem_bytes.min() == min(n_bytes for n_bytes, _ in all_of)


@pytest.mark.parametrize("name", first(1, ["mlp", "attention"]))
def test_no_other_cut_is_below_the_bound(name: str) -> None:
    found = frontier(name, (1, 2))
    model, asked = models.recorded(name, "adam"), request(name)
    times = OperatorTimes(model.model.in_micro_batches(4), asked.hardware, asked.hardware.mesh(2))
    assert all(point.time_us >= found.bound.time_ns[0] / 1e3 for point in found.points)
    for seed in range(2):
        stages = random_cuts(model, 2, seed)
        parts = [find_frontier(each, asked.hardware, 2, micro_batches=4, budget=Budget(seconds=0)) for each in stages.models]
        of_cut = SearchedStages(
            stages, blocks_of((2, 2)), tuple(parts), 4, "1f1b", tuple(works(stages, [times] * 2)),
            tuple(messages(stages, asked.hardware, blocks_of((2, 2)), 4)),
            transfers(stages, asked.hardware, blocks_of((2, 2)), 4), 0.0,
        )  # fmt: skip
        assert min(each.time_us.min(initial=np.inf) for each in of_cut.combinations) >= found.searched[-1].bound_us > 0


def crossing_by_plan(of_stage: object, number: int, received: bool) -> int:
    """What a device is sent of a micro-batch, or sends of it to the one other stage, by the plan's layouts."""
    model = of_stage.model  # type: ignore[attr-defined]
    view = model.view(of_stage.stage(number).strategy)  # type: ignore[attr-defined]
    crossings = [each for each in model.stages.crossings if model.graph.n_runs(each.tensor) > 1]
    own = [each for each in crossings if (each.target if received else each.source) == model.index]
    tensors = {each.tensor: model.graph.tensors[each.tensor] for each in own}
    return sum(
        math.prod(view.layout(tensor).largest_local_shape(tensor.shape)) * tensor.item_bytes for tensor in tensors.values()
    )


@pytest.mark.parametrize("name", first(1, ["mlp", "attention"]))
def test_the_bytes_of_a_stage_are_the_peak_of_its_passes_with_the_messages_that_wait(name: str) -> None:
    for of_stage in searched(name).frontiers:
        stage, costs = of_stage.model.index, StageCosts.of(of_stage)
        assert len(costs.numbers) == len(of_stage)
        for in_flight, deferred in (((3, 3), (0, 0)), ((4, 1), (0, 0)), ((2, 1), (1, 1))):
            order = StepOrder("zero-bubble" if any(deferred) else "1f1b", 4, in_flight, deferred)
            found = costs.bytes_of(stage, order)
            # While as many as may be are in flight
            messages, most = costs.messages(order), in_flight[stage]
            waiting = max(0, in_flight[0] - most) * crossing_by_plan(of_stage, 0, True) if stage else 0
            sent = 0 if stage else (most - 1) * crossing_by_plan(of_stage, 0, False)
            assert messages.take(0).waiting_bytes(most, most - 1) == waiting + sent
            for point in {0, len(of_stage) // 2, len(of_stage) - 1}:
                ends = ends_of(of_stage.model, is_divided(of_stage, stage, order))
                passes = of_stage.pass_memory(np.array([point]), ends)
                at_point = {stage: (passes, messages.take([point]))}
                assert found[point] == peak_together(at_point, order.orders[stage], 4)
                assert found[point] == needed_bytes(of_stage, point, stage, order)
        assert crossing_by_plan(of_stage, 0, bool(stage)) > 0


def test_where_kernels_cannot_count_some_points_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    of_cut = searched("mlp")
    order = StepOrder("1f1b", 4, (2, 1), (0, 0))
    all_of = [StageCosts.of(each).bytes_of(stage, order) for stage, each in enumerate(of_cut.frontiers)]
    monkeypatch.setattr(Peaks, "is_quick", False)
    monkeypatch.setattr(stage_memory, "MOST_REPLAYED", 2)
    for stage, of_stage in enumerate(of_cut.frontiers):
        fresh = replace(of_stage, counter=None)
        vars(fresh).pop("_counter", None)
        costs = StageCosts.of(fresh)
        assert costs.numbers.tolist() == [0, len(of_stage) - 1]
        np.testing.assert_array_equal(costs.bytes_of(stage, order), all_of[stage][costs.numbers])


def test_a_limit_is_kept_and_the_point_below_it_is_taken(everything: bool) -> None:
    whole = frontier("mlp", (1, 2))
    for point in (whole.points_of[len(whole) // 2], whole.points_of[0])[: 2 if everything else 1]:
        found = find_with_stages(replace(request("mlp", micro_batches=4), limit_bytes=point.peak_bytes), 4, (1, 2))
        plan = found.plan(found.fastest_within(point.peak_bytes))
        assert plan.peak_bytes <= point.peak_bytes and plan.time_us <= point.time_us + 1e-3
    assert whole.at(whole.points_of[0].peak_bytes).peak_bytes == whole.points_of[0].peak_bytes


def test_on_measured_hardware_stages_must_be_predicted_to_save_more_than_predictions_are_off() -> None:
    asked, staged = request("mlp", micro_batches=4), frontier("mlp", (2,))
    found = replace(frontier("mlp", (1, 2)), points_of=staged.points_of)  # as if all without stages were beaten
    alone = found.fastest_without_stages(None)
    least_us = alone[0].points[alone[1]].time_us

    def answer(saved: float, request: Request) -> Plan:
        """Return the answer if the fastest plan with stages saves a share of the fastest without."""
        fastest = replace(staged.points_of[-1], time_us=(1 - saved) * least_us)
        search = SimpleNamespace(request=request, alone=alone, alone_us=least_us)
        return _fastest(search, replace(found, points_of=(fastest,)), 0, "mini_time", 0.0)

    assert len(answer(WORTH_STAGES - 0.005, asked).stages) == 2
    asked = replace(asked, hardware=replace(asked.hardware, measured=Origin("2026-11-26", "2.21.0", 1)))
    assert len(answer(WORTH_STAGES + 0.01, asked).stages) == 2
    plan = answer(WORTH_STAGES - 0.005, asked)
    assert plan.time_us == least_us
    assert "are predicted to save 14% of a step, and taken from 15% on; ask for stages=2" in plan.frontier.summary()
    assert len(answer(WORTH_STAGES - 0.005, replace(asked, worth_stages=WORTH_TRYING)).stages) == 2


def test_a_stage_that_alone_exceeds_the_limit_is_named() -> None:
    least, asked = frontier("mlp", (2,)).points_of[0], request("mlp", micro_batches=4)
    n_bytes = least.peak_bytes
    said = rf"in 2 stages and \d+ micro-batches stage \d alone, .*, needs {n_bytes:,} bytes .* memory={n_bytes}"
    with pytest.raises(InputError, match=said):
        find_with_stages(replace(asked, limit_bytes=n_bytes - 1), 4, (2,))
    both = frontier("mlp", (1, 2))
    assert "no plan fits 10 bytes" in why_too_large(both, 10)


def test_numbers_of_stages_that_are_not_possible_are_left_out_beside_others() -> None:
    found = frontier("mlp", (1, 5))
    assert all(each.stages.n == 1 for each in found.searched)
    assert "5 stages on 4 devices: each takes one at least" in found.summary()
    without = find_with_stages(request("mlp", without=frozenset(["stages"])), 4, (1, 2))
    assert all(each.stages.n == 1 for each in without.searched) and {point.n_stages for point in without.points_of} == {1}


def test_a_session_chooses_stages_and_runs_them() -> None:
    tensoropt.init(hardware="v100-1x4", seed=3)
    x, hidden = tanh_layers(4)
    loss = tensoropt.reduce_mean(tensoropt.square(hidden - 1.0))
    train = tensoropt.AdamOptimizer(0.1).minimize(loss)
    chosen = tensoropt.find_strategy(stages=(1, 2), micro_batches=4, verbose=0)
    assert chosen.time_us == pytest.approx(chosen.frontier.points[-1].time_us, abs=1e-3)
    fewest = tensoropt.find_strategy("mini_parallelism", stages=[2, 4], micro_batches=4, verbose=0)
    assert fewest.parallelism == 2
    curve = tensoropt.find_strategy("profiling", parallelism=[1, 2], micro_batches=2, stages=(1, 2), verbose=0)
    assert [point.parallelism for point in curve.points] == [1, 2] and curve.points[0].stages == 1
    with pytest.raises(InputError, match="schedule='gpipe' is the order in which stages run"):
        tensoropt.find_strategy(stages=(1,), schedule="gpipe", verbose=0)
    plan = tensoropt.find_strategy(stages=4, verbose=0)
    assert len(plan.stages) == 4
    tensoropt.build_execution_graph(plan=plan, collectives="emulated")
    feeds = {x: np.random.default_rng(1).normal(size=(8, 16))}
    losses = [float(tensoropt.run([loss, train], feeds)[0]) for _ in range(3)]
    assert losses[0] > losses[-1]


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 1), (2, 2), ((1, 2), 1)])
def test_a_stage_may_have_variables_of_a_step_to_which_it_sends_nothing(stages: Any, micro_batches: int) -> None:
    """As where each of two losses is minimized by all variables, which is the default."""

    def losses(**how: Any) -> list[float]:
        tensoropt.init(hardware="v100-1x2", seed=3)
        x, total = tensoropt.placeholder(tensoropt.float64, [8, 6]), []
        for head in "ab":
            weights = [tensoropt.get_variable(f"{head}{i}", [6, 6], tensoropt.float64) for i in range(2)]
            hidden = tensoropt.tanh(tensoropt.matmul(tensoropt.tanh(tensoropt.matmul(x, weights[0])), weights[1]))
            total.append(tensoropt.reduce_mean(tensoropt.square(hidden - 0.5)))
        train = [tensoropt.AdamOptimizer(0.3).minimize(loss) for loss in total]
        plan = tensoropt.find_strategy(verbose=0, **how)
        tensoropt.build_execution_graph(plan=plan, collectives="emulated")
        feeds = np.random.default_rng(1).normal(size=(3, 8, 6))
        return [value for fed in feeds for value in tensoropt.run([*total, train], {x: fed})[:2]]

    np.testing.assert_allclose(losses(stages=stages, micro_batches=micro_batches), losses(stages=1), rtol=1e-12)
