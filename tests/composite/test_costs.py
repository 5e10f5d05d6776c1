"""Composite operators cost what the operators inside cost, for each trip."""

from __future__ import annotations

import tensorflow as tf
from composite import models
from composite.models import BATCH, UNITS
from helpers import zoo

from tensoropt.costs.config_costs import costs_of_config
from tensoropt.costs.operator_costs import OperatorCosting
from tensoropt.costs.resharding_costs import ReshardingCosting
from tensoropt.frontend.control_flow.value_shaped import _most_inside
from tensoropt.frontend.importer import import_graph
from tensoropt.frontend.tracing.capture import Capture
from tensoropt.ir.body import BODY, VALUE_SHAPED
from tensoropt.ir.graph import Operator
from tensoropt.profiling.work import WorkItem
from tensoropt.reschedule.mesh import Mesh
from tensoropt.rules.registry import rule_of
from tensoropt.rules.rule import Config

MESH = Mesh.of(2)
DOUBLE = 8  # bytes


class Flops:
    """One nanosecond an operation."""

    needs_keys = False

    def time_ns(self, work: WorkItem) -> int:
        return work.flops * (1 + work.n_gradients)

    def backward_ns(self, work: WorkItem) -> int:
        return work.flops * work.n_gradients


def costing_of(model: zoo.Recorded) -> OperatorCosting:
    return OperatorCosting(model.graph, model.model.backward, Flops(), ReshardingCosting(MESH, None))  # type: ignore[arg-type]


def costs(costing: OperatorCosting, op: Operator, text: str) -> tuple[int, int]:
    """Memory in bytes, and time in operations."""
    found = costs_of_config(costing, op, rule_of(op), Config.parse(MESH, text))
    return int(found.mem_bytes[0]), int(found.compute_ns[0])


def test_a_loop_keeps_for_each_trip_what_its_gradient_reads() -> None:
    model = zoo.record(models.plain_loop, "sgd")
    (loop,) = (op for op in model.graph.operators.values() if op.type == "Loop")
    costing = costing_of(model)
    whole, half = costs(costing, loop, "-"), costs(costing, loop, "d0:a")
    # Of each of 4 trips the state, which the product reads, and the result of tanh; the weight is kept by itself, and once.
    kept_results = sum(tensor.mem_bytes for tensor in loop.outputs if tensor.name in costing.saved)
    assert whole[0] == 4 * 2 * BATCH * UNITS * DOUBLE + kept_results
    assert half[0] * 2 == whole[0]
    # A product forward and one for each of its two gradients, tanh forward and backward.
    assert whole[1] == 4 * (3 * 2 * BATCH * UNITS * UNITS + 2 * BATCH * UNITS)
    assert half[1] * 2 == whole[1]


def test_a_custom_gradient_costs_its_backward_pass_and_keeps_what_it_reads() -> None:
    model = zoo.record(models.custom(models.row_scaled), "sgd")
    (op,) = (op for op in model.graph.operators.values() if op.type == "CustomGradient")
    costing = costing_of(model)
    memory, time = costs(costing, op, "-")
    elements = BATCH * UNITS
    assert memory == 0, "its results are other views of its operands"
    assert {op.inputs[i].name for i in op.attrs["form"].reads if i} <= costing.saved
    # Products with the scale, with x and with 0, a sum of two, the sum over the batch, and a product of rows.
    assert time == 5 * elements + UNITS


def test_a_conditional_costs_its_most_expensive_branch() -> None:
    chosen = tf.function(lambda x, w: tf.cond(x[0, 0] > 0, lambda: x @ w @ w, lambda: x + 1.0))
    graph = chosen.get_concrete_function(tf.TensorSpec([8, 40]), tf.TensorSpec([40, 40])).graph
    n_bytes, flops = _most_inside([op for op in graph.get_operations() if op.type == "StatelessIf"], 1)
    assert 2 * 2 * 8 * 40 * 40 <= flops <= 1.1 * 2 * 2 * 8 * 40 * 40
    assert 3 * 8 * 40 * 4 <= n_bytes <= 6 * 8 * 40 * 4


def test_rows_that_values_choose_cost_no_more_than_the_longest_dimension_has() -> None:
    capture = Capture()
    specs = [tf.TensorSpec([80, 40]), tf.TensorSpec([40, 40])]
    program = capture.add(lambda x, w: tf.reduce_sum(tf.boolean_mask(x, x[:, 0] > 0) @ w, 0), specs)
    operators = import_graph(capture.graph, (), capture.flattener.lines, [program.results.op]).operators.values()
    (body,) = (op.attrs[BODY] for op in operators if op.type == VALUE_SHAPED)
    assert 2 * 80 * 40 * 40 <= body.made_flops <= 1.2 * 2 * 80 * 40 * 40
    assert 2 * 80 * 40 * 4 <= body.made_bytes <= 5 * 80 * 40 * 4
