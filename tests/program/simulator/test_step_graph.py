"""The simulated graph has the tasks of a strategy's own step program, one to one, and they wait for the same."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import accumulate.models
import composite.models
import pytest
from helpers import zoo
from helpers.large import first
from helpers.strategies import random_router, random_strategy
from program.simulator.simulating import random_view
from session import updates

import tensoropt
from tensoropt.costs.operator_costs import costing_of
from tensoropt.profiling.hardware import named
from tensoropt.program.gradient_flow import GradientFlow
from tensoropt.program.invariants import check_program
from tensoropt.program.simulator.actions import StepActions
from tensoropt.program.simulator.step_graph import JOIN, StepGraph, StepNode, step_graph, task_nodes
from tensoropt.program.step import StepProgram, step_program
from tensoropt.program.tasks import Value
from tensoropt.reschedule.mesh import Mesh
from tensoropt.sharding.model import Model
from tensoropt.sharding.resharding import PathFinder
from tensoropt.sharding.strategy import StrategyView
from tensoropt.tools.offline import record

MODELS = (zoo.mlp, zoo.cnn, zoo.fused_cnn, zoo.attention, zoo.windows, zoo.broadcasting, *composite.models.MODELS)
HARDWARE = named("v100-2x2")


def waits_of(program: StepProgram, flow: GradientFlow) -> dict[StepNode, set[StepNode]]:
    """The nodes of a program's tasks, with those that write what each reads; a sum of gradients is where its parts are."""
    made: dict[Value, set[StepNode]] = {}
    found: dict[StepNode, set[StepNode]] = {}
    for task, nodes in task_nodes(program, flow):
        needs: set[StepNode] = set()
        for value in (*task.all_reads, *task.after):
            while value not in made:
                value = program.aliases[value]
            needs |= made[value]
        for node in nodes:
            assert node not in found, f"{node} is two tasks"
            found[node] = needs
        made.update((value, set(nodes) or needs) for value in task.writes)
    return found


def waits_in(graph: StepGraph, among: Iterable[StepNode]) -> dict[StepNode, set[StepNode]]:
    """What nodes wait for, through those that aren't among them."""
    kept, ends, found = set(among), [], {}
    for number, node in enumerate(graph.nodes):
        reached = {each for before in graph.waits_for[number] for each in ends[before]}
        if node in kept:
            found[node] = reached
        ends.append({node} if node in kept else reached)
    return found


def holds(view: StrategyView, path_finder: PathFinder) -> StepGraph:
    """Hold the graph of a strategy against its program, task by task."""
    graph, program = step_graph(view, path_finder), step_program(view, path_finder)
    check_program(program, view.graph)
    expected = waits_of(program, GradientFlow(view, path_finder))
    assert len(set(graph.nodes)) == len(graph.nodes)
    assert set(expected) <= set(graph.nodes)
    found = waits_in(graph, expected)
    for node, waits in expected.items():
        # Beyond what it reads: micro-batches in turn, writes in turn, and updates that need all gradients.
        assert waits <= found[node], f"{node} doesn't wait for {[str(each) for each in waits - found[node]]}"
        if node.micro_batch < 1 and node.kind not in ("update", "write"):
            assert waits == found[node], f"{node} waits for {[str(each) for each in found[node] - waits]}"
    return graph


def runs_what_it_charges(model: Model, view: StrategyView, path_finder: PathFinder, graph: StepGraph) -> None:
    """Hold that what takes time is a task of the program."""
    costing = costing_of(model, HARDWARE, view.strategy.mesh)
    chains = StepActions(costing, path_finder).chains(view, graph.nodes)
    run = set(waits_of(step_program(view, path_finder), GradientFlow(view, path_finder)))
    assert [str(node) for node, chain in zip(graph.nodes, chains, strict=True) if chain and node not in run] == []


@pytest.mark.parametrize("seed", first(2, range(12)))
@pytest.mark.parametrize("function", MODELS)
def test_its_nodes_are_the_program_s_tasks(function, seed):
    model = zoo.record(function, ("adam", "sgd")[seed % 2])
    shares = {"share_regathered": 0.4 * (seed % 3), "share_rematerialized": 0.4 * (seed % 3)}
    view = random_strategy(model, HARDWARE.mesh(), seed, **shares)
    separately = replace(random_router(seed), uses_buckets=False)
    runs_what_it_charges(model.model, view, separately, holds(view, separately))
    in_buckets = waits_of(step_program(view, random_router(seed)), GradientFlow(view, separately))
    assert set(in_buckets) <= set(step_graph(view, separately).nodes)


@pytest.mark.parametrize("name", accumulate.models.FUNCTIONS)
def test_so_they_are_in_micro_batches(name):
    for seed in range(4):
        shares = {"share_regathered": 0.5 * (seed % 2), "share_rematerialized": 0.5 * (seed % 2)}
        _, view = accumulate.models.random_view(name, "adam", (2, 4)[seed // 2], Mesh.of(2), seed, **shares)
        graph = holds(view, PathFinder(random_router(0).costs, uses_buckets=False))
        found = {node.micro_batch for node in graph.nodes if node.kind != JOIN}
        assert found == {-1, *range(view.graph.n_micro_batches)}


@pytest.mark.parametrize("name", ["clipped", "by_hand", "towers"])
def test_so_they_are_where_the_model_computes_with_gradients(name):
    api = tensoropt

    def script():
        x, y = api.placeholder(api.float64, [updates.N_SAMPLES, 6]), api.placeholder(api.int64, [updates.N_SAMPLES])
        updates.SCRIPTS[name](api, x, y)

    model = record(script, name).model
    for seed in range(3):
        view = random_view(model, HARDWARE.mesh(), random.Random(seed))
        graph = holds(view, PathFinder(random_router(0).costs, uses_buckets=False))
        gradients = {number for number, node in enumerate(graph.nodes) if node.kind == "reshard back"}
        assert len(gradients) > 5
        ends: list[set[int]] = []
        for number, before in enumerate(graph.waits_for):
            ends.append({number}.union(*(ends[each] for each in before)))
        written = {name for name in updates.WEIGHTS if name in model.graph.updates} or {"by hand"}
        last = [n for n, node in enumerate(graph.nodes) if node.kind in ("update", "write") and len(ends[n] & gradients) > 1]
        assert len(last) >= len(written)
