"""The costs of operators in arrays are those of each config by itself, to the byte and the nanosecond."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from composite import models as composite
from helpers import zoo
from helpers.large import first
from one_device.models import adversarial

from tensoropt.costs.config_costs import READS_PART, ConfigCosts, costs_of_config
from tensoropt.costs.operator_costs import OperatorCosting, costing_of
from tensoropt.costs.resharding_costs import shard_bytes
from tensoropt.ir.body import ALIASES
from tensoropt.ir.graph import VARIABLE
from tensoropt.ir.optimizer import ParameterUpdate
from tensoropt.profiling.hardware import named
from tensoropt.profiling.hardware_costs import OperatorCosts
from tensoropt.profiling.work import Measured, WorkItem
from tensoropt.rules.config_arrays import ConfigArrays
from tensoropt.rules.configs import configs, configs_by_degrees
from tensoropt.rules.registry import rule_of
from tensoropt.rules.rule import interface_of
from tensoropt.sharding.model import Model
from tensoropt.sharding.strategy import is_rematerializable, may_be_rematerialized_at_all

HARDWARE = named("v100-2x2")
MOST_CONFIGS = 16
COSTS = "mem_bytes compute_ns backward_ns adding_ns within_ns updating_ns saved_result_bytes communicates_inside".split()


def looked_up() -> zoo.Built:
    """Rows of two tables, one of which is used for nothing else."""
    api, rng = tf.compat.v1, np.random.default_rng(3)
    tokens = api.placeholder(tf.int32, [6, 5], name="tokens")
    rows, tied = (api.get_variable(name, [8, 6], tf.float64) for name in ("rows", "tied"))
    hidden = tf.tanh(tf.gather(rows, tokens) + tf.gather(tied, tokens))
    loss = tf.reduce_mean(tf.square(tf.nn.softmax(tf.reshape(hidden, [30, 6]) @ tf.transpose(tied))))
    return zoo.Built(loss, {tokens: tuple(rng.integers(0, 8, (6, 5)).astype(np.int32) for _ in range(zoo.N_BATCHES))}, ())


MODELS: list[tuple[Callable[[], zoo.Built], str]] = [
    (zoo.fused_cnn, "momentum"), (looked_up, "sgd"), (zoo.windows, "adam"), (composite.plain_loop, "sgd"),
    (adversarial, "adam"), (zoo.attention, "adam"), (zoo.cnn, "momentum"), (zoo.broadcasting, "momentum"),
]  # fmt: skip


class SomeMeasured(OperatorCosts):
    """Costs of which every other work was measured, whatever its key; measured times differ by the key."""

    needs_keys = True  # type: ignore[assignment]

    def time_ns(self, work: WorkItem) -> int:
        return super().time_ns(work) + self._by_key(work)

    def backward_ns(self, work: WorkItem) -> int:
        return super().backward_ns(work) + self._by_key(work) // 3

    @staticmethod
    def _by_key(work: WorkItem) -> int:
        return random.Random(work.key).randrange(1000)


def assert_equal_costs(costing: OperatorCosting, seed: int) -> None:
    graph, gradients, mesh = costing.graph, costing.backward.gradients, costing.reshardings.mesh
    for op in graph.step_operators:
        if op.updates is not None:
            continue
        rule = rule_of(op)
        every = configs(rule, mesh)
        fastest = [ConfigCosts(costing, op, ConfigArrays.of(rule, each)) for each in (every, configs_by_degrees(rule, mesh))]
        assert fastest[0].compute_ns.min() == fastest[1].compute_ns.min(), op.where()
        chosen = tuple(random.Random(seed).sample(every, min(MOST_CONFIGS, len(every))))
        costs = ConfigCosts(costing, op, ConfigArrays.of(rule, chosen))
        ones = [ConfigCosts(costing, op, ConfigArrays.of(rule, (config,))) for config in chosen]
        interfaces = [interface_of(rule, config) for config in chosen]
        assert list(costs.interfaces) == interfaces, op.where()
        for name in COSTS:
            assert getattr(costs, name).tolist() == [getattr(one, name)[0] for one in ones], f"{name}: {op.where()}"
        for i, interface in enumerate(interfaces):
            results = [shard_bytes(*each) for each in zip(op.outputs, interface.results, strict=True)]
            read = [shard_bytes(tensor, interface.operand(position).layout) for position, tensor in op.operands]
            work = costs.work(i)
            if work is not None and op.type not in (VARIABLE, *ALIASES, *READS_PART):
                amounts = round(rule.flops_per_point * costs.arrays.local_points()[i]), sum(results + read)
                assert (work.flops, work.n_bytes) == amounts, op.where()
        if may_be_rematerialized_at_all(graph, op, rule, gradients):
            can_be = [is_rematerializable(graph, op, rule, config, gradients) for config in chosen]
            assert (~costs.communicates_inside).tolist() == can_be, op.where()


@pytest.mark.parametrize("seed", first(1, range(20)))
@pytest.mark.parametrize(("function", "optimizer"), first(5, MODELS))
def test_arrays_have_the_costs_of_each_config(function: Callable[[], zoo.Built], optimizer: str, seed: int) -> None:
    model = zoo.record(function, optimizer).model
    assert_equal_costs(costing_of(model, HARDWARE, HARDWARE.mesh()), seed)


def test_updates_that_need_global_gradients_and_sums() -> None:
    """As of optimizers that divide by the norms of parameters, or clip by that of all gradients."""
    model = zoo.record(zoo.mlp, "sgd").model
    graph = replace(model.graph)
    names = list(model.graph.updates)
    updates = [ParameterUpdate(2, i % 2 == 1, ((i + 1, 4),) * (i < 2)) for i in range(len(names))]
    vars(graph)["updates"] = {name: (update,) for name, update in zip(names, updates, strict=True)}
    costing = costing_of(Model(graph, model.backward), HARDWARE, HARDWARE.mesh())
    assert_equal_costs(costing, 0)
    rule = rule_of(graph.operators[names[1]])
    found = ConfigCosts(costing, graph.operators[names[1]], ConfigArrays.of(rule, configs(rule, HARDWARE.mesh())))
    assert found.updating_ns.any() and len(set(found.updating_ns.tolist())) > 1


def test_measured_operators_are_told_apart_by_their_keys() -> None:
    model = zoo.record(zoo.fused_cnn, "momentum").model
    costing = costing_of(model, HARDWARE, HARDWARE.mesh())
    by_key = OperatorCosting(model.graph, model.backward, SomeMeasured(HARDWARE), costing.reshardings)
    assert_equal_costs(by_key, 0)


READS: dict[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = {
    "gather": lambda table, ids: tf.gather(table, ids),
    "gather_nd": lambda table, ids: tf.gather_nd(tf.convert_to_tensor(table), ids[:, None]),
    "slice": lambda table, ids: tf.slice(table, [2, 0], [3, 4]),
    "strided slice": lambda table, ids: table[1:4],
}


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("of_activation", [False, True])
@pytest.mark.parametrize("read", READS)
def test_reading_a_part_costs_what_it_moves(read: str, of_activation: bool, optimizer: str) -> None:
    """A read costs the same of any table; only a gradient that isn't of rows has as many zeros as the table has numbers."""

    def costs(rows: int) -> tuple[int, int]:
        def function() -> zoo.Built:
            ids = tf.compat.v1.placeholder(tf.int32, [3], name="ids")
            table = tf.compat.v1.get_variable("table", [rows, 4])
            found = READS[read](tf.tanh(table) if of_activation else table, ids)
            return zoo.Built(tf.reduce_sum(tf.tanh(found)), {ids: (np.zeros(3, np.int32),) * zoo.N_BATCHES}, ())

        model = zoo.record(function, optimizer).model
        costing = costing_of(model, HARDWARE, HARDWARE.mesh(1))
        (op,) = (op for op in model.graph.operators.values() if op.type in READS_PART and op.result.shape == (3, 4))
        rule = rule_of(op)
        work = costs_of_config(costing, op, rule, configs(rule, HARDWARE.mesh(1))[0]).work()
        return work.n_bytes, work.gradient_bytes or 0

    (few, few_back), (many, many_back) = costs(8), costs(1000)
    is_by_rows = read == "gather" and not of_activation
    assert few == many < 8 * 16
    assert many_back - few_back == (0 if is_by_rows else 992 * 16)


def test_micro_batches_and_measured_hardware() -> None:
    model = zoo.record(zoo.mlp, "momentum").model.in_micro_batches(7, 4)
    work = WorkItem("MatMul", "float64", 1000, 1000, 2, "something")
    known = OperatorCosts(HARDWARE, {work.key: Measured(work, 10.0, 20.0, 0.0)}, is_cautious=True)
    costing = costing_of(model, HARDWARE, HARDWARE.mesh())
    assert known.needs_keys and not costing.compute.needs_keys
    assert_equal_costs(costing, 0)
    assert_equal_costs(OperatorCosting(model.graph, model.backward, known, costing.reshardings), 0)
