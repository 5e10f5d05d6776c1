"""Searching by measured operators: what is measured, when it ends, and what it says; and timing real operators."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from accumulate import models
from helpers import zoo
from helpers.searches import find_with_stages
from pipeline.test_cuts import slow_link

import tensoropt
from tensoropt.common.errors import InputError
from tensoropt.costs.config_costs import costs_of_config
from tensoropt.costs.work_items import largest_operand_shapes
from tensoropt.ft import Budget
from tensoropt.profiling.compute import cpu_name
from tensoropt.profiling.hardware import Hardware, named
from tensoropt.profiling.store import FILE, Store
from tensoropt.reschedule.mesh import Mesh
from tensoropt.rules.configs import configs
from tensoropt.rules.registry import rule_of
from tensoropt.rules.rule import Config
from tensoropt.runtime.measuring.operator_timer import OperatorTimer, OperatorTrial, Timed
from tensoropt.runtime.ranks import Processes
from tensoropt.search.baselines import data_parallel
from tensoropt.search.options import find_answer, mini_time
from tensoropt.search.request import Request
from tensoropt.search.task import BaselineTask
from tensoropt.tuning.profile_guided import (
    NEGLIGIBLE,
    MeasuredSearch,
    _data_parallel_part,
    find_measured,
    parse_budget,
    part_of,
    parts_of,
    work_of,
)

ALONE = Processes(0, 1, ("here",))
DEVICES = 2


def here(n_devices: int = DEVICES) -> Hardware:
    """Hardware whose device is this machine's, with numbers that don't depend on it."""
    described = named(f"v100-1x{n_devices}")
    return replace(described, name="here", device=replace(described.device, name=cpu_name()))


class Machine:
    """Times by a law of its own, and a clock that goes on by what is timed; ``slow`` types take a thousand times as long."""

    def __init__(self, slow: str = "", seconds_each: float = 0.1, fails: str = "") -> None:
        self.slow, self.seconds_each, self.fails = slow, seconds_each, fails
        self.now, self.timed = 0.0, []

    def clock(self) -> float:
        return self.now

    def time(self, trial: OperatorTrial) -> Timed | None:
        self.now += self.seconds_each
        self.timed.append((trial.op.name, str(trial.config)))
        if trial.op.type == self.fails:
            return None
        (layout, *_), (tensor, *_) = trial.interface.results, trial.op.outputs
        size = sum(layout.largest_local_shape(tensor.shape))
        scale = 1e3 if trial.op.type == self.slow else 1.0
        return Timed(scale * (1 + size), scale * len(trial.indices), 0.05)


@pytest.fixture(scope="module")
def model():
    return zoo.record(zoo.mlp, "momentum").model


def searching(model, machine: Machine, store: Store, budget_s: float = 1e9, processes: Processes = ALONE) -> MeasuredSearch:
    def search(known):
        machine.now += 60.0  # which no budget counts
        return mini_time(Request(model, here(), None, known=known, budget=Budget(seconds=0)), DEVICES)

    return MeasuredSearch(processes, model, search, budget_s, store, machine, machine.clock)  # type: ignore[arg-type]


def variables_of(model) -> int:
    """Updates of variables can't be timed by themselves."""
    return sum(op.is_trainable for op in model.graph.variables)


def in_step(model) -> set[str]:
    return {op.name for op in model.graph.step_operators if op.updates is None}


def found(searching: MeasuredSearch):
    return searching.find(lambda compute: compute())


def test_all_of_the_answer_is_measured_once_and_nothing_twice(model):
    machine, store = Machine(), Store(None, "here")
    plan = found(searching(model, machine, store))
    told, (frontier,) = plan.assumed["operators"], plan.frontier.without_stages
    works = {op.name: work_of(frontier, op.name, op.config) for op in plan.operators if op.name in in_step(model)}
    times_us = {name: frontier.costing.compute.time_ns(work) / 1e3 for name, work in works.items() if work is not None}
    unknown_us = [time_us for name, time_us in times_us.items() if works[name].key and works[name].key not in store.measured]
    assert sum(unknown_us) <= NEGLIGIBLE * sum(times_us.values())
    assert told["predicted"] == variables_of(model) + len(unknown_us) and told["measured"] > 5
    assert len(store.measured) <= len(set(machine.timed)) == len(machine.timed)
    # What was measured is in the plan's costs.
    times = {op.name: op.time_us for op in plan.operators}
    configs = plan.stages[0].strategy.configs
    for name, config in machine.timed:
        if str(configs[name]) == config:
            op = model.graph.operators[name]
            timed = Machine().time(OperatorTrial.of(op, configs[name], model.graph, model.backward, 0.0))
            assert times[name] == pytest.approx(timed.forward_us + timed.backward_us, abs=1e-3)
    # The next run knows it all.
    again = Machine()
    assert found(searching(model, again, store)).to_json() == plan.to_json()
    assert again.timed == []


def staged(machine: Machine, store: Store, stages: tuple[int, ...]) -> MeasuredSearch:
    """A search in four micro-batches for a perceptron in stages."""
    model = models.recorded("mlp", "momentum").model

    def search(known):
        request = Request(model, here(), None, known=known, micro_batches=4, budget=Budget(seconds=0), stages=stages)
        return find_answer("mini_time", request, DEVICES)

    return MeasuredSearch(ALONE, model, search, 1e9, store, machine, machine.clock)  # type: ignore[arg-type]


@pytest.mark.parametrize("stages", [(2,), pytest.param((1, 2), marks=pytest.mark.large)])
def test_all_of_an_answer_with_stages_is_measured_once(stages):
    model, machine, store = models.recorded("mlp", "momentum").model, Machine(), Store(None, "here")
    plan = found(staged(machine, store, stages))
    told = plan.assumed["operators"]
    works = [(part, work_of(part.frontier, *pair)) for part in parts_of(plan) for pair in part.pairs(model)]
    times_us = {id(work): part.frontier.costing.compute.time_ns(work) / 1e3 for part, work in works if work is not None}
    unknown_us = [times_us[id(work)] for _, work in works if work and work.key and work.key not in store.measured]
    assert told["measured"] > 3 and len(store.measured) <= len(set(machine.timed)) == len(machine.timed)
    assert sum(unknown_us) <= NEGLIGIBLE * sum(times_us.values())
    again = Machine()
    assert found(staged(again, store, stages)).to_json() == plan.to_json()
    assert again.timed == []


def test_the_fastest_plan_without_stages_is_measured_beside_one_with_stages():
    model, machine = models.recorded("mlp", "momentum").model, Machine()

    request = Request(model, slow_link(1e8), None, micro_batches=4, budget=Budget(seconds=0))
    frontier = find_with_stages(request, DEVICES, (1, 2))
    plan = frontier.plan([point.n_stages for point in frontier.points_of].index(2))
    searching = MeasuredSearch(ALONE, model, lambda known: plan, 1e9, Store(None, "here"), machine)  # type: ignore[arg-type]
    assert frontier.fastest_without_stages(limit_bytes=1) is None
    without = part_of(*frontier.fastest_without_stages(None))
    graph = without.frontier.model.graph
    assert {name for name, _ in without.pairs(model)} == {op.name for op in graph.step_operators if op.updates is None}
    searching._measure_all(searching._next_operators(plan, is_first=True), 1e9)
    works = [work for pair in without.pairs(model) if (work := work_of(without.frontier, *pair)) and work.key]
    times_us = {work.key: without.frontier.costing.compute.time_ns(work) / 1e3 for work in works}
    left_us = sum(time_us for key, time_us in times_us.items() if key not in searching.store.measured)
    assert left_us <= NEGLIGIBLE * sum(times_us.values())


def test_the_times_of_a_stage_are_those_that_were_measured():
    model = models.recorded("mlp", "momentum").model
    usual, slow = (found(staged(machine, Store(None, "here"), (2,))) for machine in (Machine(), Machine("MatMul")))
    assert slow.time_us > 10 * usual.time_us
    graph = model.in_micro_batches(4).graph
    for stage, part in zip(slow.stages, parts_of(slow), strict=True):
        for op in stage.operators:
            if op.type == "MatMul":
                trial = OperatorTrial.of(graph.operators[op.name], op.config, graph, model.backward, 0.0)
                timed, costing = Machine("MatMul").time(trial), part.frontier.costing
                sums = costs_of_config(costing, costing.graph.operators[op.name], trial.rule, op.config).adding_ns[0] / 1e3
                assert op.time_us == pytest.approx(4 * (timed.forward_us + timed.backward_us) + sums, abs=1e-2)


def test_slow_operators_change_the_answer(model):
    usual, odd = (found(searching(model, Machine(slow), Store(None, "here"))) for slow in ("", "MatMul"))
    assert odd.time_us > 10 * usual.time_us
    # No more than if all configs had been known beforehand: the plan is the best of the frontier it measured.
    assert odd.frontier is not None and odd.time_us == min(point.time_us for point in odd.frontier.points)


def test_a_budget_ends_it_and_the_largest_of_the_plan_come_first(model):
    machine, store = Machine(seconds_each=1.0), Store(None, "here")
    plan = found(searching(model, machine, store, budget_s=3.5))
    assert len(machine.timed) == 4
    told = plan.assumed["operators"]
    assert told["predicted"] > variables_of(model) and told["measured_time_percent"] < 100
    first = mini_time(Request(model, here(), None), DEVICES)
    times = {op.name: op.time_us for op in first.operators if op.type != "Variable"}
    assert times[machine.timed[0][0]] == max(times.values())
    # Later runs go on where this one ended.
    found(searching(model, machine, store, budget_s=3.5))
    assert len(set(machine.timed)) == 8


def test_a_spent_budget_ends_with_a_cautious_search(model):
    """Products are slow and nobody knows: by predictions the search would settle for some that it hasn't measured."""

    def watched(budget_s: float):
        """The plan, and whether each search was cautious."""
        cautious = []
        each = searching(model, Machine("MatMul", seconds_each=1.0), Store(None, "here"), budget_s)
        search = each.search

        def noted(known):
            cautious.append(known.is_cautious)
            return search(known)

        each.search = noted
        return found(each), cautious

    assert not any(watched(1e9)[1])
    plan, cautious = watched(2.5)
    assert cautious == [False] * (len(cautious) - 1) + [True]
    assert plan.stages[0].frontier.costing.compute.is_cautious


def test_data_parallelism_comes_behind_the_first_plan(model):
    first = mini_time(Request(model, here(), None), DEVICES)
    (frontier,) = first.frontier.without_stages
    alone, both = (searching(model, Machine(), Store(None, "here"))._next_operators(first, flag) for flag in (False, True))
    assert both[: len(alone)] == alone and len(both) > len(alone)
    batch = data_parallel.configs(BaselineTask(frontier.costing, frontier.mesh, frontier.built.space))
    assert all(batch[op.name] == op.config != first.stages[0].strategy.configs[op.name] for op, _ in both[len(alone) :])
    # What is forced keeps out of the space what contradicts it.
    (forced,) = mini_time(Request(model, here(), None, {"MatMul": {"m": 1}}), DEVICES).frontier.without_stages
    products = {op.name for op in model.graph.step_operators if op.type == "MatMul"}
    assert products & set(_data_parallel_part(frontier).configs)
    assert not products & set(_data_parallel_part(forced).configs)


def test_what_cannot_run_by_itself_is_predicted_and_tried_once(model):
    machine, store = Machine(fails="MatMul"), Store(None, "here")
    plan = found(searching(model, machine, store))
    assert len(set(machine.timed)) == len(machine.timed)
    assert not any(key.startswith("MatMul") for key in store.measured)
    assert plan.assumed["operators"]["predicted"] > 0


def test_the_slowest_rank_counts(model):
    class Two(Processes):
        def gather(self, value):
            assert isinstance(value, Timed)
            return [value, replace(value, forward_us=10 * value.forward_us, spread=0.4)]

    machine, store = Machine(), Store(None, "here")
    found(searching(model, machine, store, 0.05, Two(0, 1, ("here",))))
    (only,) = store.measured.values()
    assert only.forward_us >= 20 and only.spread == 0.4


def test_an_interruption_keeps_what_was_measured(model, tmp_path):
    class Interrupted(Machine):
        def time(self, trial):
            if len(self.timed) == 3:
                raise KeyboardInterrupt
            return super().time(trial)

    with closing(Store(tmp_path / FILE, "here")) as store, pytest.raises(KeyboardInterrupt):
        found(searching(model, Interrupted(), store))
    with closing(Store(tmp_path / FILE, "here")) as store:
        assert len(store.measured) == 3


@pytest.mark.parametrize(("given", "seconds"), [("60s", 60), (2.5, 2.5), ("2min", 120), (" 500 ms", 0.5), ("1m", 60)])
def test_budgets(given, seconds):
    assert parse_budget(given) == seconds


@pytest.mark.parametrize("given", ["", "soon", "-1s", 0, "nan", "inf", None])
def test_what_is_no_budget(given):
    with pytest.raises(InputError, match="a time above 0 such as '60s'"):
        parse_budget(given)


def test_what_cannot_be_measured_here(model):
    request = Request(model, named("v100-1x2"), None)
    with pytest.raises(InputError, match="operators of v100-1x2 can't be measured here: its device is 'V100-SXM2-16GB'"):
        find_measured("mini_time", request, 2, "1s", ALONE)
    with pytest.raises(InputError, match="leave out the profiling budget"):
        find_measured("profiling", request, [1, 2], "1s", ALONE)


def trial_of(model, name: str, text: str) -> OperatorTrial:
    op = model.graph.operators[name]
    return OperatorTrial.of(op, Config.parse(here().mesh(), text), model.graph, model.backward, 1e4)


@pytest.mark.parametrize(
    ("name", "config"), [("Conv2D", "h:a"), ("Conv2D", "n:a h:b"), ("MaxPool", "h:a"), ("AvgPool", "h:a w:b")]
)
def test_operators_are_timed_on_all_that_their_windows_cover(name, config):
    def overlapping():
        api = tf.compat.v1
        x = api.placeholder(api.float32, [4, 12, 12, 3], name="x")
        kernel = api.get_variable("kernel", [3, 3, 3, 8])
        hidden = tf.nn.conv2d(x, kernel, 1, "SAME", name="Conv2D")
        hidden = tf.nn.max_pool2d(hidden, 3, 1, "SAME", name="MaxPool")
        batch = np.zeros((zoo.N_BATCHES, 4, 12, 12, 3), np.float32)
        return zoo.Built(api.reduce_mean(tf.nn.avg_pool2d(hidden, 3, 1, "SAME", name="AvgPool")), {x: tuple(batch)}, ())

    model = zoo.record(overlapping, "sgd").model
    op, rule = model.graph.operators[name], rule_of(model.graph.operators[name])
    chosen = Config.parse(here(4).mesh(), config)
    assert rule.exchanged(chosen)
    trial = OperatorTrial.of(op, chosen, model.graph, model.backward, 50.0)
    assert trial.indices
    shapes = largest_operand_shapes(op, rule, chosen, trial.interface)
    (own, _), split = op.operands[0][1].shape[1:3], chosen.degree("h")
    assert shapes[0][1] in (own // split + 1, own // split + 2)  # rows above or below, and in the middle both
    timed = OperatorTimer().time(trial)
    # The backward pass's time is a difference of two, which other work on the machine may bring to zero.
    assert timed is not None and timed.forward_us > 0 and np.isfinite(timed.backward_us)


def test_only_results_that_get_gradients_are_given_them():
    model = zoo.record(zoo.cnn, "sgd").model
    (loss,) = (op for op in model.graph.step_operators if "SoftmaxCrossEntropy" in op.type)
    trial = trial_of(model, loss.name, "-")
    assert len(loss.outputs) == 2 and trial.given == (0,) and trial.indices == (0,)
    assert OperatorTimer().time(trial) is not None


def test_real_operators_are_timed_unsplit_and_split():
    model, timer = zoo.record(zoo.cnn, "sgd").model, OperatorTimer()
    options = tf.config.optimizer.get_experimental_options()
    of_type = {op.type: op.name for op in model.graph.step_operators if op.operands and op.updates is None}
    for name in of_type.values():
        timed = timer.time(trial_of(model, name, "-"))
        assert timed is not None, name
        assert timed.forward_us >= 0 and timed.backward_us >= 0
    assert timer.time(trial_of(model, of_type["Conv2D"], "n:a")) is not None
    assert tf.config.optimizer.get_experimental_options() == {**options, "disable_meta_optimizer": False}


def test_operators_take_their_cpu_time_as_often_as_ranks_share_a_core():
    """A clock that stands still: what is told is of CPU time alone. On a core of its own a rank's CPU time doesn't count."""
    model, busy = zoo.record(zoo.mlp, "sgd").model, iter(range(10**6))
    op = next(op for op in model.graph.operators.values() if op.type == "MatMul")
    trial = OperatorTrial.of(op, next(iter(configs(rule_of(op), Mesh.of(2)))), model.graph, model.backward, 1.0)
    shared = OperatorTimer("/CPU:0", lambda: 0.0, lambda: next(busy) * 1e-3, 3.0, _call_s=0.0)
    alone = OperatorTimer("/CPU:0", lambda: 0.0, lambda: next(busy) * 1e-3, _call_s=0.0)
    assert [timer.time(trial).forward_us for timer in (shared, alone)] == [pytest.approx(3000.0 / 32), 0.0]


def test_find_strategy_measures_within_its_budget_and_goes_on_later(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSOROPT_CACHE", str(tmp_path))
    known = [0]
    for _ in range(2):
        tensoropt.init(hardware=here(), seed=1)
        tensoropt.GradientDescentOptimizer().minimize(zoo.mlp(tensoropt).loss)
        told = tensoropt.find_strategy(profile_budget="1s").assumed["operators"]
        assert told["measured"] + told["predicted"] > 0
        # Recording goes on.
        assert tf.compat.v1.get_default_graph() is tensoropt.current_session()._recording.graph
        with closing(Store(tmp_path / FILE, told["environment"])) as store:
            known.append(len(store.measured))
    assert 0 < known[1] <= known[2]
