"""Cuts of models, and what stages are predicted to take: against all cuts, against the whole model's operators, by hand."""

from __future__ import annotations

from dataclasses import astuple, replace

import accumulate.models as models
import numpy as np
import pytest
from helpers.large import first
from pipeline.staged import random_cuts

from tensoropt.common.errors import InputError
from tensoropt.profiling.hardware import Hardware, LinkLevel, Origin, named
from tensoropt.program.orders.fast_makespan import PassTimes, step_us
from tensoropt.program.orders.schedule import StepOrder
from tensoropt.search.frontiers.find_frontier import searched
from tensoropt.search.frontiers.model_frontier import ModelFrontier
from tensoropt.search.request import Request
from tensoropt.search.stages.cuts import MOST_PLACES, Cut, _Places, balanced
from tensoropt.search.stages.memory import ends_of, is_divided
from tensoropt.search.stages.placement import Block, blocks_of
from tensoropt.search.stages.times import OperatorTimes, TimesBySize, messages, transfers, works
from tensoropt.sharding.model import Model
from tensoropt.sharding.stages import Stages

N = 4


def slow_link(bytes_per_s: float, **changed: object) -> Hardware:
    """Return two machines of one device, joined by a link."""
    levels = (LinkLevel("machine", 2, 10.0, bytes_per_s), LinkLevel("device", 1, 0.0, 1e11))
    return replace(named("v100-2x1"), levels=levels, **changed)


def times_of(model: Model, hardware: Hardware, n: int = N) -> OperatorTimes:
    return OperatorTimes(model.in_micro_batches(n), hardware, hardware.mesh(1))


def halves(model: Model, hardware: Hardware) -> Cut:
    """Return a model cut in two, on a device each."""
    return balanced([[Block(0, 1)], [Block(1, 1)]], TimesBySize(model, hardware, N))


@pytest.mark.parametrize(("name", "seed"), first(4, [(name, seed) for seed in range(5) for name in models.FUNCTIONS]))
def test_stages_do_what_the_whole_model_does(name: str, seed: int) -> None:
    """Each operator is in one stage, or in each that needs it; lookups that run ahead are counted before and after."""
    model, hardware = models.recorded(name, "adam").model, slow_link(1e8)
    times = times_of(model, hardware)
    if sum(op.is_trainable for op in model.graph.variables) < 2:
        with pytest.raises(InputError):
            halves(model, hardware)
        return
    stages = random_cuts(models.recorded(name, "adam"), 2, seed)
    twice = stages.members[0] & stages.members[1]
    of_whole = sum(each.total(N) for each in times.of.values()) + sum(times.of[o].total(N) for o in twice & times.of.keys())
    assert sum(each.total(N) for each in works(stages, (times, times))) == pytest.approx(of_whole, rel=1e-9)


def test_a_tied_table_is_looked_up_before_its_stage_begins_and_updated_there() -> None:
    model, hardware = models.recorded("tied", "adam").model, slow_link(1e8)
    times, stages = times_of(model, hardware), Stages(model, ("Tanh",))
    (table,) = {name for name in model.graph.updates if name == "table"}
    lookups = sum(times.of[name].forward for name in stages.ahead.lookups)
    first_stage, last_stage = works(stages, (times, times))
    assert set(stages.ahead.lookups.values()) == {1} and first_stage.before == 0.0
    assert last_stage.before == pytest.approx(N * lookups)
    assert last_stage.after > times.of[table].after > 0.0


def test_messages_take_of_a_measured_rank_what_the_link_takes_by_the_exposed_share() -> None:
    model = models.recorded("tied", "adam").model
    stages = Stages(model, ("Tanh",))
    assert messages(stages, slow_link(1e8), blocks_of((1, 1)), N) == [PassTimes()] * 2
    measured = slow_link(1e8, measured=Origin("2026-11-26", "2.21.0", 1), exposed_share=0.5, collective_call_us=30.0)
    first_stage, last_stage = messages(stages, measured, blocks_of((1, 1)), N)
    graph = model.in_micro_batches(N).graph
    rows = [graph.tensors[name].mem_bytes for name in ("Gather:0", "Gather_1:0")]
    own = 30.0 + 0.25 * graph.tensors["Tanh:0"].mem_bytes / 100
    of_rows = sum(30.0 + 0.25 * n_bytes / 100 for n_bytes in rows)
    (mask,) = (graph.tensors[each.tensor] for each in stages.crossings if not each.has_gradient)
    forward = own + 30.0 + 0.25 * mask.mem_bytes / 100
    # Stage 0 receives rows and sends its result, stage 1 receives it; rows are sent before all passes.
    assert astuple(first_stage) == pytest.approx((of_rows + forward, of_rows + own, 0.0, 0.0, 0.0, 0.0, 0.0))
    assert astuple(last_stage) == pytest.approx((forward, own, N * of_rows, N * of_rows, 0.0, 0.0, 0.0))


def test_rows_are_waited_for_and_not_counted_among_what_passes_send() -> None:
    model, hardware = models.recorded("tied", "adam").model, slow_link(1e8)
    stages = Stages(model, ("Tanh",))
    graph = model.in_micro_batches(N).graph
    on_the_way = transfers(stages, hardware, blocks_of((1, 1)), N)
    rows = sum(10.0 + graph.tensors[name].mem_bytes / 100 for name in ("Gather:0", "Gather_1:0"))
    sent = [graph.tensors[each.tensor].mem_bytes for each in stages.crossings if each.source == 0]
    assert on_the_way.each == pytest.approx([sum(10.0 + n_bytes / 100 for n_bytes in sent)])
    assert on_the_way.first == pytest.approx([rows, 0.0]) and on_the_way.last == pytest.approx([rows, 0.0])
    times = [PassTimes(1.0, 2.0), PassTimes(1.0, 2.0, before=5.0, after=3.0)]
    # Before the first pass: the lookups of stage 1, then their way. After the last one: the way back, then the update.
    order = StepOrder("gpipe", N, (N, N), (0, 0))
    assert step_us(times, on_the_way._replace(each=[0.0]), order) == pytest.approx(5 + 2 * rows + 15 + 3)


def test_a_link_inside_of_a_machine_and_one_between_machines() -> None:
    hardware = replace(named("v100-2x4"), measured=Origin("2026-11-26", "2.21.0", 1), exposed_share=0.5)
    model = models.recorded("attention", "adam").model
    stages = random_cuts(models.recorded("attention", "adam"), 2, 3)
    within, between = (transfers(stages, hardware, blocks_of(sizes), N).each[0] for sizes in ((2, 2), (4, 4)))
    machine, device = hardware.levels
    sent = [each for each in stages.crossings if not each.is_ahead]
    graph = model.in_micro_batches(N).graph
    n_bytes = sum(graph.tensors[e.tensor].mem_bytes for e in sent if e.tensor in graph.micro_batching.forms)
    assert n_bytes
    n = sum(e.tensor in graph.micro_batching.forms for e in sent)
    assert within == pytest.approx(n * device.latency_us + n_bytes / (2 * device.bytes_per_s) * 1e6)
    assert between == pytest.approx(n * machine.latency_us + n_bytes / machine.bytes_per_s * 1e6)


def test_gradients_of_variables_are_late_where_ranks_run_in_order() -> None:
    model, hardware = models.recorded("mlp", "adam").model, slow_link(1e8)
    in_order = replace(hardware, measured=Origin("2026-11-26", "2.21.0", 1))
    assert all(each.late == 0.0 for each in times_of(model, hardware).of.values())
    times = times_of(model, in_order)
    products = [op.name for op in model.graph.operators.values() if op.type == "MatMul"]
    at_once = times_of(model, in_order, 1).of
    # The first product's backward pass is for its weights alone, since a batch has no gradient.
    shares = [1.0] + [0.5] * (len(products) - 1)
    assert [at_once[name].late / at_once[name].backward for name in products] == pytest.approx(shares)
    # Sums of gradients over micro-batches are late, all of them.
    assert all(times.of[name].late > 0.51 * times.of[name].backward for name in products)
    stages = Stages(model, ("Tanh",))
    others = messages(stages, in_order, blocks_of((1, 1)), N)
    every = [each + other for each, other in zip(works(stages, (times, times)), others, strict=True)]
    assert all(0.0 < each.late < each.backward for each in every[1:])


def last_stage(threads: int) -> ModelFrontier:
    """Return the frontier of the last stage of the perceptron on one device, whose ranks have so many threads."""
    request = Request(
        Stages(models.recorded("mlp", "adam").model, ("Tanh",)).models[1],
        slow_link(1e8, measured=Origin("2026-11-26", "2.21.0", threads)), None, micro_batches=N,
    )  # fmt: skip
    return searched(request, 1)


def test_memory_holds_what_deferred_gradients_are_made_of() -> None:
    frontier = last_stage(0)
    graph, members = frontier.model.graph, Stages(models.recorded("mlp", "adam").model, ("Tanh",)).members[1]
    # A product and a scaling of an activation by a parameter: each reads the activation and the gradient of its result.
    using = [op for op in graph.operators.values() if op.name in members and op.type in ("MatMul", "Mul")]
    using = [op for op in using if any(t.name in graph.made_of_variables for _, t in op.operands)]
    using = [op for op in using if graph.n_runs(op.result.name) > 1]
    read = {tensor.name: tensor for op in using for _, tensor in op.operands if graph.n_runs(tensor.name) > 1}
    n_bytes = sum(tensor.mem_bytes for tensor in (*read.values(), *(op.result for op in using)))

    forward, backward, _ = frontier.pass_memory(np.array([0]), ends_of(frontier.model, True)).changes[1, :, 0]
    assert forward + backward == n_bytes > 0


def test_backward_passes_are_divided_where_ranks_run_in_order_or_defer_and_a_stage_waits() -> None:
    orders = [StepOrder("zero-bubble", N, (1, 1), (0, deferred)) for deferred in (0, 1)]
    found = {threads: [is_divided(last_stage(threads), 1, order) for order in orders] for threads in (0, 1)}
    assert found == {0: [False, True], 1: [True, True]}
    frontier = last_stage(1)
    of_first = replace(frontier, model=frontier.model.stages.models[0].in_micro_batches(N))
    assert not is_divided(of_first, 0, orders[0])


@pytest.mark.parametrize("where", ["placed", "variables"])
def test_the_only_cut_that_is_possible_is_found_among_many_places(where: str) -> None:
    """Less crosses after every other operator, where cuts of a large model are looked for first."""
    n, only = 2 * MOST_PLACES, 201
    names = [f"op{number}" for number in range(n)]
    crossing, blocks = np.where(np.arange(n + 1) % 2, 100.0, 50.0), (Block(0, 2), Block(2, 2))
    trained, placed = np.arange(n + 1), {}
    if where == "placed":
        placed = {names[only - 1]: blocks[0], names[only]: blocks[1]}
    else:
        trained = (np.arange(n + 1) >= only).astype(int) + (np.arange(n + 1) > only)
    times = {2: np.arange(n + 1.0)}
    of_places = {0: 0.0, 2: 0.001, 4: 0.0}, trained, frozenset(names), placed, {2: np.zeros(n + 1)}
    places = _Places(names, times, crossing, *of_places)
    assert only not in places._few
    assert places.shortest_longest([[each] for each in blocks])[0] == [only - 1]
