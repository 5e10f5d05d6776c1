"""The order in which gradients are emitted, against TensorFlow's own."""

from __future__ import annotations

import tensorflow as tf
from hypothesis import example, given
from hypothesis import strategies as st

from tensoropt.program.backward_order import reverse_order


@st.composite
def graphs(draw: st.DrawFn) -> list[list[int]]:
    """The producers of each node: nodes before it, the first of which is a variable."""
    return [[], *(draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=3)) for n in range(1, draw(st.integers(2, 9))))]


def emitted(sources: list[list[int]]) -> list[int]:
    """The order in which TensorFlow differentiates a graph of sums, each of whose gradients is noted when it is made."""
    found: list[int] = []
    with tf.Graph().as_default():

        def node(number: int, *operands: tf.Tensor) -> tf.Tensor:
            @tf.custom_gradient
            def noted(*values: tf.Tensor):
                def gradient(*gradients: tf.Tensor):
                    found.append(number)
                    return [gradients[0]] * len(values)

                # Not tf.add_n, which is no operator where there is one value: all nodes must be as deep.
                return tf.raw_ops.AddN(inputs=list(values)), gradient

            return noted(*operands)

        variable = tf.compat.v1.placeholder(tf.float32, [])
        values = [variable]
        for number, each in enumerate(sources[1:], start=1):
            values.append(node(number, *(values[source] for source in each)))
        tf.gradients(values[-1], variable)
    return found


@given(graphs())
@example([[], [0], [0, 1], [0], [0], [3], [2, 5]])
def test_nodes_come_as_tensorflow_comes_to_them(sources: list[list[int]]) -> None:
    last = len(sources) - 1
    assert [node for node in reverse_order([last], lambda node: sources[node]) if node] == emitted(sources)


def test_what_is_chained_comes_in_reverse() -> None:
    # Three operands of one node, the first two of which come through collectives.
    sources = {"product": ["a", "b", "c"], "a": ["x"], "b": ["y"], "c": ["z"], "x": [], "y": [], "z": []}
    assert list(reverse_order(["product"], lambda node: sources[node])) == ["product", "a", "b", "c", "x", "y", "z"]
    chained = list(reverse_order(["product"], lambda node: sources[node], ["a", "b"]))
    assert chained == ["product", "b", "c", "a", "y", "z", "x"]
    broken = list(reverse_order(["product"], lambda node: sources[node], ["a", None, "b"]))
    assert broken == ["product", "a", "b", "c", "x", "y", "z"]
