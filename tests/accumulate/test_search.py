"""Micro-batches in a search: what is chosen, what it costs, what frontiers keep of it, and what is refused."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import accumulate.models as models
import numpy as np
import one_device.models as two_steps
import pytest
import tensorflow as tf
from helpers.large import first
from helpers.searches import find_frontier, plans_of

from tensoropt import zoo
from tensoropt.common.errors import InputError
from tensoropt.costs.config_costs import costs_of_config
from tensoropt.costs.operator_costs import costing_of
from tensoropt.plan.frontier import Frontier
from tensoropt.profiling.hardware import named
from tensoropt.rules.registry import rule_of
from tensoropt.rules.rule import Config
from tensoropt.search.frontiers.model_frontier import ModelFrontier
from tensoropt.search.options import mini_time
from tensoropt.search.problem.choices import ACCUMULATE
from tensoropt.search.request import Request
from tensoropt.sharding.model import Model
from tensoropt.tools.cli.main import main
from tensoropt.tools.offline import record

HARDWARE = named("v100-1x2")


@cache
def lenet() -> Model:
    return record(lambda: zoo.lenet5(batch=64), "lenet").model


@cache
def frontier(n: int) -> ModelFrontier:
    return find_frontier(lenet(), HARDWARE, 2, micro_batches=n)


def request(limit: int, without: frozenset[str] = frozenset()) -> Request:
    return Request(lenet(), HARDWARE, limit, without=without)


def test_more_micro_batches_take_less_memory_and_no_less_time() -> None:
    for least in (
        [int(frontier(n).costs.mem_bytes.min()) for n in (1, 2, 4)],
        [frontier(n).peak_bytes(frontier(n).least_point()) for n in (1, 2, 4)],
    ):
        assert least == sorted(least, reverse=True) and len(set(least)) == 3
    fastest = [int(frontier(n).found.time_ns[-1]) for n in (1, 2, 4)]
    assert fastest == sorted(fastest)


def test_search_uses_micro_batches_where_the_limit_needs_them(everything: bool) -> None:
    """Micro-batches make no limit's plan slower, and there are plans below the least memory that is needed without them."""
    whole = frontier(1)
    least, most = (whole.peak_bytes(point) for point in (whole.least_point(), whole.fastest_within(None)))
    chosen = set()
    for limit in np.linspace(least, most, 4 if everything else 2).astype(int).tolist():
        alone, plan = mini_time(request(limit, frozenset([ACCUMULATE])), 2), mini_time(request(limit), 2)
        assert plan.time_us <= alone.time_us and plan.frontier.peak_bytes(plan.point) <= limit
        chosen.add(plan.micro_batches)
    assert plan.micro_batches == 1, "the fastest of all takes the full batch at once"
    assert chosen > {1}
    limit = least - 1
    with pytest.raises(InputError, match="no plan fits"):
        mini_time(request(limit, frozenset([ACCUMULATE])), 2)
    assert mini_time(request(limit), 2).micro_batches > 1


def test_without_a_limit_that_binds_nothing_more_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    import tensoropt.search.frontiers.find_frontier as finding

    asked: list[int] = []

    search = finding.find_frontier

    def counted(request: Request, *others: Any) -> ModelFrontier:
        asked.append(request.micro_batches or 1)
        return search(request, *others)

    monkeypatch.setattr(finding, "find_frontier", counted)
    mini_time(request(10**12), 2)
    mini_time(dataclasses.replace(request(0), limit_bytes=None), 2)
    assert asked == [1, 1]


@pytest.mark.parametrize("name", [*first(2, ["mlp", "windows", "attention"]), "adversarial", "adversarial at once"])
def test_points_cost_what_they_are_charged(name: str) -> None:
    """Costs of a strategy are those of its operators and its reshardings; each slice and each pass back has its own."""
    has_two_passes, n = name.startswith("adversarial"), 1 if name.endswith("at once") else 2
    model = (two_steps if has_two_passes else models).recorded(name.split()[0], "momentum").model
    found, n_passes = find_frontier(model, HARDWARE, 2, micro_batches=n, space="full"), set[int]()
    for point in range(0, len(found), max(1, len(found) // 5)):
        plan = plans_of(found).plan(point)
        in_reshardings = sum(resharding.time_us for resharding in plan.reshardings)
        n_passes.update(resharding.n_passes for resharding in plan.reshardings)
        in_operators = sum(op.time_us for op in plan.operators)
        assert plan.time_us == pytest.approx(in_reshardings + in_operators, abs=0.01)
        assert plan.micro_batches == n
        strategy = found.built.strategy(found.found.strategies[point])
        states = found.built.states_of(strategy)
        memory, time_ns = found.built.problem.cost(states.tolist())
        again = memory + found.built.missing_bytes(states[None])[0], time_ns
        assert again == (found.found.mem_bytes[point], found.found.time_ns[point])
    assert n_passes == ({1, 2} if has_two_passes else {1})


def test_operators_cost_their_share_in_a_micro_batch() -> None:
    """Each keeps the n-th part of a tensor; what all take is what the whole takes, and what each has for itself n times."""
    mesh = HARDWARE.mesh(2)
    whole, per_micro_batch = (costing_of(lenet().in_micro_batches(n), HARDWARE, mesh) for n in (1, 4))
    n_sliced = n_sums = 0
    for op in lenet().graph.step_operators:
        of_micro_batch, config = per_micro_batch.graph.operators[op.name], Config.unsplit(mesh)
        costs = costs_of_config(whole, op, rule_of(op), config)
        sliced = costs_of_config(per_micro_batch, of_micro_batch, rule_of(of_micro_batch), config)
        memory, time_ns = zip(*((int(each.mem_bytes[0]), int(each.compute_ns[0])) for each in (costs, sliced)), strict=True)
        if per_micro_batch.graph.n_runs(op.result.name) == 1:
            assert memory[0] == memory[1] and time_ns[0] == time_ns[1]
            continue
        is_fed = op.type == "Placeholder"
        assert memory[0] == (1 if is_fed else 4) * memory[1]
        operands = [tensor for i, tensor in of_micro_batch.operands if per_micro_batch.accumulates(of_micro_batch, i)]
        sums = int(sliced.adding_ns[0])
        assert sums == 3 * sum(round(3e9 * each.mem_bytes / HARDWARE.device.memory_bytes_per_s) for each in operands)
        assert time_ns[1] - sums >= time_ns[0] - 4 and (time_ns[1] - sums) % 4 == 0
        n_sliced, n_sums = n_sliced + 1, n_sums + len(operands)
    assert n_sliced > 10 and n_sums == sum(op.type == "Variable" for op in lenet().graph.operators.values())


def test_accumulators_are_charged_where_a_copy_has_another_layout() -> None:
    """Gradients of a split parameter that is gathered once for all micro-batches are accumulated at the gathered copy."""
    force = {"Variable": {"d0": 2}, "MatMul": {"m": 2}, "Placeholder": {"d0": 2}}
    model = record(_products, "products", "sgd").model
    plan = plans_of(find_frontier(model, HARDWARE, 2, force=force, micro_batches=2)).fastest()
    gathered = [each for each in plan.reshardings if each.tensor.startswith("w")]
    assert gathered and all(each.n_runs == 1 and each.accumulator_bytes == 4 * 64 * 64 for each in gathered)
    assert "gradients accumulated" in plan.explain() and "2 micro-batches" in plan.explain()


def _products() -> tf.Tensor:
    value = tf.compat.v1.placeholder(tf.float32, [32, 64], name="x")
    for i in range(3):
        value = tf.tanh(tf.matmul(value, tf.compat.v1.get_variable(f"w{i}", [64, 64])))
    return tf.reduce_mean(value)


def test_a_frontier_reads_back_as_it_was_written(tmp_path: Path) -> None:
    found = plans_of(frontier(2))
    found.save(tmp_path / "frontier.json")
    loaded = Frontier.load(tmp_path / "frontier.json")
    for point in (0, len(found) // 2, -1):
        assert loaded.plan(point).to_json() == found.plan(point).to_json()
    assert "2 micro-batches" in loaded.summary()


# Refused


@pytest.mark.parametrize("given", [0, -2, 2.0, "4", True, None])
def test_wrong_numbers_of_micro_batches_are_refused(given: object) -> None:
    from tensoropt.sharding.micro_batches import checked_count

    with pytest.raises(InputError, match="micro_batches takes a whole number from 1 up"):
        checked_count(given)


def test_numbers_that_do_not_divide_the_batch_are_refused() -> None:
    with pytest.raises(InputError, match="has 64 samples, which 3 doesn't divide; give a divisor of 64, such as 2 or 4"):
        lenet().in_micro_batches(3)


def test_statistics_over_the_batch() -> None:
    def normalised() -> tf.Tensor:
        x = tf.compat.v1.placeholder(tf.float32, [8, 6, 6, 2])
        scale, offset = (tf.compat.v1.get_variable(name, [2]) for name in ("scale", "offset"))
        made = tf.compat.v1.nn.fused_batch_norm(x, scale, offset)[0]
        return tf.reduce_mean(tf.square(made))

    model = record(normalised, "normalised").model
    with pytest.raises(InputError, match=r"FusedBatchNormV3.* needs the whole batch at once, as batch normalisation"):
        model.in_micro_batches(2)
    # By itself a search takes the full batch at once, and says what it would need.
    with pytest.raises(InputError, match="no plan fits"):
        mini_time(Request(model, HARDWARE, 100), 2)


def test_losses_that_are_no_sum_over_the_batch() -> None:
    def largest() -> tf.Tensor:
        x = tf.compat.v1.placeholder(tf.float32, [8, 6])
        return tf.reduce_mean(tf.square(tf.reduce_sum(tf.matmul(x, tf.compat.v1.get_variable("w", [6, 2])))))

    with pytest.raises(InputError, match=r"Square '.*' .*needs the whole batch at once"):
        record(largest, "largest").model.in_micro_batches(2)


def test_micro_batches_can_be_switched_off_in_two_ways() -> None:
    from tensoropt.search.request import checked_micro_batches

    with pytest.raises(InputError, match="leave one of the two"):
        checked_micro_batches(lenet(), 2, [ACCUMULATE])
    assert checked_micro_batches(lenet(), 1, [ACCUMULATE]) == 1
    with pytest.raises(InputError, match="takes no micro-batches, got micro_batches=2"):
        find_frontier(lenet(), HARDWARE, 2, algorithm="data-parallel", micro_batches=2)


def test_command_line_has_micro_batches(capfd: pytest.CaptureFixture[str]) -> None:
    command = ["search", "zoo:lenet5", "--cluster", "v100-1x2", "--micro-batches"]
    assert main([*command, "4"]) == 0
    assert "4 micro-batches" in capfd.readouterr().out
    for given in ("0", "some"):
        assert main([*command, given]) == 2
        assert "--micro-batches takes a whole number from 1 up" in capfd.readouterr().err
