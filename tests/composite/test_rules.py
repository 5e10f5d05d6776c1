"""Composite operators may be split as their bodies allow."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tensorflow as tf
from composite import models
from composite.models import BATCH, UNITS

from tensoropt.frontend.importer import import_graph
from tensoropt.ir.graph import Operator
from tensoropt.ir.invariants import check_graph
from tensoropt.reschedule.mesh import Mesh
from tensoropt.rules.composition import Composition
from tensoropt.rules.registry import rule_of
from tensoropt.rules.rule import Config, interface_of

api = tf.compat.v1


def composites(build: Callable[[], object]) -> list[Operator]:
    """The composite operators of what a function builds."""
    with tf.Graph().as_default() as graph:
        build()
    imported = import_graph(graph, ())
    check_graph(imported)
    return [op for op in imported.operators.values() if op.type in ("Loop", "CustomGradient")]


def x() -> tf.Tensor:
    return api.placeholder(tf.float64, [BATCH, UNITS], name="x")


def test_loops_over_time_split_the_batch() -> None:
    for op in composites(models.lstm):
        rule = rule_of(op)
        assert str(rule) == "1 d1 1, 1 d1 1, d1 1, d1 1, d1 1, 1 1, 1 1, 1 -> 1 d1 1, d1 1, d1 1, d1 1"
        assert rule.extents == {"d1": BATCH} and not rule.even
        interface = interface_of(rule, Config.parse(Mesh.of(2), "d1:a"))
        assert str(interface.operands[-1]) == "[-] ~a", "the gradient of a weight is each device's share"


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (models.elementwise_loop, "1, d1 d2, d2, , d1 d2 -> d1 d2"),
        (lambda: tf.nn.silu(x()) + 1.0, "d0 d1, d0 d1 -> d0 d1"),
        (lambda: models.straight_through(x()) + 1.0, "d0 d1, d0 d1 -> d0 d1"),
        # Gradients of what lacks a factor are summands.
        (lambda: models.scaled(x(), api.placeholder(tf.float64, [UNITS])) + 1.0, "d0 d1, d1, d0 d1 -> d0 d1"),
    ],
)
def test_what_works_element_by_element_splits_every_dimension(build: Callable[[], object], expected: str) -> None:
    (op,) = composites(build)
    assert str(rule_of(op)) == expected


def test_a_sum_of_each_trip_is_partial() -> None:
    """A stack of each trip's sum over the batch is partial where the batch is split."""

    def build() -> None:
        values, sums = x(), tf.TensorArray(tf.float64, 3)

        def step(t: tf.Tensor, state: tf.Tensor, sums: tf.TensorArray) -> tuple[object, ...]:
            return t + 1, tf.tanh(state), sums.write(t, tf.reduce_sum(state, 0))

        tf.while_loop(lambda t, *_: t < 3, step, (0, values, sums))[2].stack()

    (loop,) = composites(build)
    interface = interface_of(rule_of(loop), Config.parse(Mesh.of(2), "d0:a"))
    assert [str(layout) for layout in interface.results] == ["[-, -] +a", "[a, -]"]


def test_a_state_that_sums_over_the_batch_keeps_it_unsplit() -> None:
    def build() -> None:
        values = x()
        start = tf.zeros([UNITS], tf.float64)
        tf.while_loop(lambda t, _: t < 3, lambda t, s: (t + 1, s + tf.reduce_sum(values, 0)), (0, start))

    (loop,) = composites(build)
    assert list(rule_of(loop).extents.values()) == [UNITS]
    (batch,) = (trial.why_not for trial in Composition(loop).trials.values() if trial.why_not)
    assert "isn't linear in while/Sum:0" in batch


def test_merged_dimensions_divide_evenly() -> None:
    """A body that puts pairs of rows into one: blocks must hold whole pairs."""

    def build() -> None:
        rows = api.placeholder(tf.float64, [12, UNITS])

        def step(t: tf.Tensor, state: tf.Tensor) -> tuple[object, ...]:
            pairs = tf.nn.softmax(tf.reshape(state, [6, 2, UNITS]), axis=1)
            return t + 1, tf.reshape(pairs, [12, UNITS])

        tf.while_loop(lambda t, _: t < 2, step, (0, rows))

    (loop,) = composites(build)
    rule = rule_of(loop)
    assert rule.extents == {"d0": 6, "d1": UNITS} and rule.even == {"d0"}


def test_a_gradient_that_all_devices_compute_alike_is_kept_by_one() -> None:
    (op,) = composites(lambda: models.decayed(x(), api.placeholder(tf.float64, [UNITS, UNITS])) + 1.0)
    composition = Composition(op)
    (rows,) = (name for name, extent in composition.extents.items() if extent == BATCH)
    of_w = op.attrs["form"].into.index(1)
    config = Config(Mesh.of(2, 2), (rows, ""))
    assert composition.alike(of_w, config) == (0,)
    assert composition.alike(1 - of_w, config) == ()


def test_gradients_that_need_the_global_tensor_run_unsplit_and_say_why() -> None:
    (op,) = composites(lambda: models.normalised_gradient(x()) + 1.0)
    rule = rule_of(op)
    assert not rule.extents
    assert "would need a collective to split factor" in rule.without and "models.py" in rule.without


def test_loops_in_loops() -> None:
    def build() -> None:
        w = api.get_variable("w", [UNITS], tf.float64)

        def inner(state: tf.Tensor) -> tf.Tensor:
            return tf.while_loop(lambda t, _: t < 2, lambda t, s: (t + 1, tf.nn.silu(s * w)), (0, state))[1]

        tf.while_loop(lambda t, _: t < 3, lambda t, s: (t + 1, inner(s)), (0, x()))

    (loop,) = composites(build)
    assert str(rule_of(loop)) == "d0 d1, d1 -> d0 d1"
    (within,) = loop.attrs["body"].operators
    assert within.type == "Loop" and within.attrs["form"].trips == 2


def test_equal_bodies_are_known_as_equal() -> None:
    """Equal bodies share a signature, so that the search works repeated layers out once."""

    def build() -> None:
        tf.nn.silu(tf.nn.silu(x()) * 2.0) + 1.0

    first, second = composites(build)
    assert str(first.attrs["body"]) == str(second.attrs["body"])
    (other,) = composites(lambda: tf.nn.silu(x(), 2.0) + 1.0)
    assert str(other.attrs["body"]) != str(first.attrs["body"])
