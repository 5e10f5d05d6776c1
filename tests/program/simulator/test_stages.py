"""Steps in stages are simulated: each pass when it may run, as busy as planned, and messages between the stages."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import accumulate.models as models
import pytest
from one_device import drawing
from one_device.models import recorded
from pipeline.test_plans import plan_of

from tensoropt.ft import Budget
from tensoropt.plan.simulation import simulate_plan
from tensoropt.profiling.hardware import named
from tensoropt.program.orders.passes import BACKWARD, FORWARD, PARAMETERS, Pass
from tensoropt.program.simulator.network import LINK
from tensoropt.program.simulator.step_graph import SEND
from tensoropt.program.tasks import RESULT
from tensoropt.search.options import find_answer
from tensoropt.search.request import request_of


@pytest.mark.parametrize(
    ("name", "n_stages", "n", "schedule"),
    [("mlp", 2, 1, None), ("mlp", 2, 4, "1f1b"), ("mlp", 2, 4, "zero-bubble"), ("attention", 4, 2, "gpipe"),
     ("attention", 4, 4, "interleaved")],
)  # fmt: skip
def test_passes_run_in_their_order_as_long_as_planned(name: str, n_stages: int, n: int, schedule: str | None) -> None:
    plan = plan_of(name, n_stages, 4 if schedule == "gpipe" else 2, schedule, micro_batches=n)
    simulation = simulate_plan(plan, models.recorded(name, "adam").model, named("v100-1x4"))
    timeline, nodes = simulation.timeline, simulation.timeline.graph.nodes
    for number, devices in enumerate(plan.submeshes):
        assert timeline.resources[number].devices == devices
        operators = (op for stage in plan.stages if stage.devices == devices for op in stage.operators)
        planned_us = sum(op.time_us for op in operators if not op.is_stand_in)
        assert planned_us - 1 <= timeline.busy_ns[number] / 1e3 <= 1.1 * planned_us + 10
        spans: dict[Pass, tuple[int, int]] = {}
        for task, times in zip(timeline.tasks, timeline.times, strict=True):
            node = nodes[task.key.node]
            if task.device == number and node.micro_batch >= 0 and task.exe_ns:
                run = Pass(node.stage, node.micro_batch, FORWARD if node.kind in ("forward", "reshard") else BACKWARD)
                start, end = spans.get(run, times[1:])
                spans[run] = min(start, times.start_ns), max(end, times.end_ns)
        order = [run for run in plan.orders[number] if run.work != PARAMETERS and run in spans]
        assert set(order) == set(spans)
        if schedule != "zero-bubble":  # which runs what it defers of a micro-batch beside the passes of others
            assert all(spans[before][1] <= spans[after][0] for before, after in pairwise(order))
    assert sum(node.kind == SEND for node in nodes) >= 2 * n * (n_stages - 1)
    links = [ns for each, ns in zip(timeline.resources, timeline.busy_ns, strict=True) if each.kind == LINK]
    assert any(links) and "submesh 0 > 1" in simulation.report()
    assert max(timeline.busy_ns) <= timeline.makespan_ns <= simulation.additive_ns
    assert timeline.makespan_ns / 1e3 == pytest.approx(plan.time_us, rel=0.3)


def test_each_training_step_sends_its_own_gradients_back() -> None:
    model, hardware = recorded("adversarial", "adam").model, named("v100-1x2")
    request = replace(request_of(model, hardware, None, {}, micro_batches=2, stages=2), budget=Budget(seconds=0))
    plan = find_answer("mini_time", request, 2)
    nodes = simulate_plan(plan, model, hardware).timeline.graph.nodes
    sent = sorted((node.name, node.number) for node in nodes if node.kind == SEND and node.site.kind == RESULT)
    crossings, numbers = plan.cut(model).crossings, {step: number for number, step in enumerate(model.graph.train_steps)}
    n_runs = model.in_micro_batches(2).graph.n_runs
    assert sent == sorted(
        (each.tensor, numbers[step]) for each in crossings for step in each.steps for _ in range(n_runs(each.tensor))
    )
    assert {number for _, number in sent} == {0, 1}


@pytest.mark.parametrize("seed", [13, 625])
def test_rows_are_sent_to_each_micro_batch_ahead_and_their_gradients_come_back(seed: int) -> None:
    draw = drawing.drawn(seed, 4)
    nodes = simulate_plan(drawing.plan_of(draw), draw.model.model, named(draw.cluster)).timeline.graph.nodes
    for name in ("Gather:0", "Gather_1:0"):
        sent = sorted((node.stage, node.micro_batch) for node in nodes if (node.kind, node.name) == (SEND, name))
        assert sent == [(stage, index) for stage in (0, 1) for index in (range(draw.n) if draw.n > 1 else [-1])]
