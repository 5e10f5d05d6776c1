"""Loops, conditionals and gradients that can't be captured: one sentence with the user's line and the way round."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tensorflow as tf

from tensoropt.common.errors import InputError
from tensoropt.frontend.importer import import_graph
from tensoropt.frontend.tracing.capture import Capture

SPEC = tf.TensorSpec([6, 5], tf.float64)


def capture(function: Callable[[tf.Tensor], tf.Tensor]) -> None:
    traced = Capture()
    program = traced.add(function, [SPEC])
    import_graph(traced.graph, (), traced.flattener.lines, [program.results.op])


def until_small(x: tf.Tensor) -> tf.Tensor:
    return tf.while_loop(lambda s: tf.reduce_max(s) > 1.0, lambda s: (s / 2.0,), (x,))[0]


def where_it_points(x: tf.Tensor) -> tf.Tensor:
    rows = tf.TensorArray(tf.float64, 6).unstack(x)

    def step(t: tf.Tensor, s: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return t + 1, s + rows.read(tf.cast(s[0] > 0.0, tf.int32))

    return tf.while_loop(lambda t, _: t < 3, step, (0, x[0]))[1]


def what_it_wrote(x: tf.Tensor) -> tf.Tensor:
    rows = tf.TensorArray(tf.float64, 4, clear_after_read=False, element_shape=[5])

    def step(t: tf.Tensor, rows: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
        rows = rows.write(t, x[0])
        return t + 1, rows.write(t, rows.read(t) * 2.0)

    return tf.while_loop(lambda t, _: t < 4, step, (0, rows))[1].stack()


def written_afterwards(x: tf.Tensor) -> tf.Tensor:
    rows = tf.TensorArray(tf.float64, 4, element_shape=[5])
    rows = tf.while_loop(lambda t, _: t < 4, lambda t, r: (t + 1, r.write(t, x[0])), (0, rows))[1]
    return rows.write(0, x[1]).stack()


def not_all(x: tf.Tensor) -> tf.Tensor:
    rows = tf.TensorArray(tf.float64, 4, element_shape=[5])
    return tf.while_loop(lambda t, _: t < 3, lambda t, r: (t + 1, r.write(t, x[0])), (0, rows))[1].stack()


def never(x: tf.Tensor) -> tf.Tensor:
    return tf.while_loop(lambda t, _: t < 0, lambda t, s: (t + 1, s * 2.0), (0, x))[1]


def grows(x: tf.Tensor) -> tf.Tensor:
    shapes = (tf.TensorShape([]), tf.TensorShape([None, 5]))
    step = lambda t, s: (t + 1, tf.concat([s, x], 0))  # noqa: E731
    return tf.reduce_sum(tf.while_loop(lambda t, _: t < 2, step, (0, x), shape_invariants=shapes)[1])


def overridden(x: tf.Tensor) -> tf.Tensor:
    with tf.compat.v1.get_default_graph().gradient_override_map({"Sign": "Identity"}):
        return tf.sign(x)


@pytest.mark.parametrize(
    ("function", "what"),
    [(until_small, "runs as often as a computed value says"),
     (where_it_points, "reads or writes a place that depends on what it computes"),
     (what_it_wrote, "must write once to each TensorArray in a trip"),
     (written_afterwards, "stacks a TensorArray that no loop filled"),
     (not_all, "fills places .0, 1, 2. of a TensorArray of 4 elements"),
     (never, "doesn't run even once"),
     (grows, "from shape .6, 5. to .12, 5."),
     (overridden, "write it with tf.custom_gradient")],
    ids=lambda value: value.__name__ if callable(value) else "",
)  # fmt: skip
def test_refusals_name_the_users_line(function: Callable[[tf.Tensor], tf.Tensor], what: str) -> None:
    with pytest.raises(InputError, match=what) as error:
        capture(function)
    assert "test_bad_input.py:" in str(error.value)


def test_recorded_conditionals_that_update_are_refused() -> None:
    with tf.Graph().as_default() as graph:
        v = tf.compat.v1.get_variable("v", [6, 5], tf.float64, use_resource=True)
        x = tf.compat.v1.placeholder(tf.float64, [6, 5])
        tf.cond(tf.reduce_sum(x) > 0.0, lambda: v.assign_add(x) * 2.0, lambda: x)
    with pytest.raises(InputError, match=r"If 'cond' \(test_bad_input.py:\d+\) .* updates variables, draws"):
        import_graph(graph, ())
