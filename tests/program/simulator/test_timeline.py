"""The simulated step against the additive costs, whatever the strategy; its busy times and its critical path."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from helpers import zoo
from helpers.large import first
from helpers.strategies import random_strategy
from one_device.models import adversarial
from program.simulator.simulating import CLUSTERS, Simulated, step_timeline, summed_ns
from zoo.small import SMALL

from tensoropt.common.errors import InputError
from tensoropt.costs.operator_costs import costing_of
from tensoropt.plan.build import cost_entries, planned_operators
from tensoropt.profiling.hardware import named
from tensoropt.profiling.hardware_costs import CollectiveCosts
from tensoropt.program.simulator.step_graph import step_graph
from tensoropt.program.simulator.topology_network import network_of
from tensoropt.rules.rule import NONE
from tensoropt.sharding.resharding import PathFinder, PlainCosts

HARDWARE = named("v100-2x2")
MODELS = (zoo.mlp, zoo.attention, zoo.fused_cnn, zoo.windows, zoo.fourier, zoo.broadcasting, adversarial)


def additive_ns(view, costing, path_finder) -> int:
    """The time of Equation (3), from what a plan would list."""
    operators = round(sum(op.time_us for op in planned_operators(view, costing)) * 1e3)
    return operators + sum(entry.time_ns(path_finder) for entry in cost_entries(view))


def in_steps(view):
    """The view without the operators that no training step runs."""
    names = {op.name for op in view.graph.step_operators}
    configs = {name: config for name, config in view.strategy.configs.items() if name in names}
    return replace(view, strategy=replace(view.strategy, configs=configs))


def as_run(view, path_finder):
    """The view without the rematerialized operators whose results nothing reads: costs have them, no step computes them."""
    while True:
        again = {node.name for node in step_graph(view, path_finder).nodes if node.kind == "recompute"}
        if view.rematerialized <= again:
            return view
        again &= view.rematerialized
        view = replace(view, strategy=replace(view.strategy, rematerialized=frozenset(again)))


@pytest.mark.parametrize(("model", "optimizer", "seed"), first(7, [
    (model, optimizer, seed) for seed in range(10) for optimizer in ("adam", "sgd") for model in MODELS
]))  # fmt: skip
def test_where_nothing_overlaps_a_step_takes_the_sum_of_its_parts(model, optimizer, seed):
    recorded, mesh = zoo.record(model, optimizer), HARDWARE.mesh()
    view = in_steps(random_strategy(recorded, mesh, seed, share_regathered=0.3, share_rematerialized=0.3))
    costing = costing_of(recorded.model, HARDWARE, mesh)
    path_finder = PathFinder(costing.reshardings.steps)
    view = as_run(view, path_finder)
    timeline = step_timeline(view, costing, path_finder, network_of(HARDWARE, mesh))
    assert timeline.makespan_ns == additive_ns(view, costing, path_finder)
    assert timeline.makespan_ns == summed_ns(timeline, CollectiveCosts(HARDWARE, mesh))
    assert timeline.busy_ns == (timeline.makespan_ns,)


@pytest.mark.parametrize(("name", "seed"), first(2, [
    (name, seed) for seed in range(3) for name in ("rnntc", "llama3_8b", *(name for name in SMALL if name != "rnntc"))
]))  # fmt: skip
def test_so_it_does_for_the_zoo_s_models(name, seed):
    simulated = Simulated.of(name, HARDWARE, seed)
    timeline = simulated.timeline()
    assert timeline.makespan_ns == additive_ns(simulated.view, simulated.costing, simulated.actions.path_finder)


@pytest.mark.parametrize("n_micro_batches", [2, 4])
def test_with_micro_batches_too(n_micro_batches):
    recorded, mesh = zoo.record(lambda: zoo.mlp(batch=8), "adam"), HARDWARE.mesh()
    whole = random_strategy(recorded, mesh, 5)
    model = recorded.model.in_micro_batches(n_micro_batches, mesh.n_devices)
    unsplit = {name: replace(config, assignment=(NONE,) * 2) for name, config in whole.strategy.configs.items()}
    split = {"w1": whole.strategy.configs["w1"], "w2": whole.strategy.configs["w2"]}
    view = in_steps(model.view(replace(whole.strategy, configs={**unsplit, **split}, shared={})))
    costing = costing_of(model, HARDWARE, mesh)
    path_finder = PathFinder(costing.reshardings.steps)
    timeline = step_timeline(view, costing, path_finder, network_of(HARDWARE, mesh))
    assert timeline.makespan_ns == additive_ns(view, costing, path_finder)
    forward = [i for i, node in enumerate(timeline.graph.nodes) if node.kind == "forward" and node.name == "MatMul"]
    assert len(forward) == n_micro_batches
    ready = [next(at.ready_ns for task, at in zip(timeline.tasks, timeline.times, strict=True) if task.key.node == i)
             for i in forward]  # fmt: skip
    ends: dict[int, int] = {}
    for task, at in zip(timeline.tasks, timeline.times, strict=True):
        node = timeline.graph.nodes[task.key.node]
        if node.kind == "backward" and node.micro_batch >= 0:
            ends[node.micro_batch] = max(ends.get(node.micro_batch, 0), at.end_ns)
    # One after the other: a micro-batch begins when the one before has been through.
    assert all(ready[run + 1] >= ends[run] > 0 for run in range(n_micro_batches - 1))


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("name", ["lenet5", "rnnlm"])
def test_the_critical_path_goes_from_the_beginning_to_the_end(name, cluster):
    for seed in range(3):
        simulated = Simulated.of(name, CLUSTERS[cluster](), seed)
        timeline = simulated.timeline()
        path = timeline.critical_path()
        assert path[0].start_ns == 0 and path[-1].end_ns == timeline.makespan_ns
        assert all(before.end_ns == after.start_ns for before, after in pairwise(path))
        for resource, busy in zip(timeline.resources, timeline.busy_ns, strict=True):
            assert 0 <= busy <= timeline.makespan_ns, resource


def test_what_overlaps_takes_less_than_the_sum_and_no_less_than_each_device_computes():
    for seed in range(5):
        simulated = Simulated.of("rnnlm", CLUSTERS["levels that overlap"](), seed)
        timeline = simulated.timeline()
        total = summed_ns(timeline, timeline.network.costs)
        assert max(timeline.busy_ns) <= timeline.makespan_ns < total


def test_several_passes_are_refused_in_a_sentence():
    recorded = zoo.record(zoo.mlp, "sgd")
    view = random_strategy(recorded, HARDWARE.mesh(), 1)
    graph = type("Sequential", (type(view.graph),), {"is_sequential": True})(
        view.graph.operators, view.graph.train_steps, view.graph.aliases
    )
    with pytest.raises(InputError, match="only steps with one forward and one backward pass"):
        step_graph(replace(view, graph=graph), PathFinder(PlainCosts()))
