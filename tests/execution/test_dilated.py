"""Convolutions with gaps, which TensorFlow writes as three operators on CPUs: one in the graph, and one device's numbers.

Trained as plain Keras does, to 1e-10 of each tensor's largest magnitude, by strategies that split heights and widths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.large import first
from helpers.strategies import random_router, random_strategy, slides
from helpers.switches import floats
from hypothesis import given
from hypothesis import strategies as st
from keras import layers
from models.catalog import Entry
from models.training import Case, by_strategy, case_of, differences

from tensoropt.frontend.importer import import_graph
from tensoropt.lowering.operators import raw_operator
from tensoropt.reschedule.mesh import Mesh

THREE = ("SpaceToBatchND", "BatchToSpaceND")
MESHES = (Mesh.of(4), Mesh.of(3), Mesh.of(2, 2))
MODELS: dict[str, tuple[tuple[int, ...], Callable[[], list[Any]]]] = {
    "plain": (
        (11, 13, 3),
        lambda: [
            layers.Conv2D(4, 3, dilation_rate=2, padding="same", activation="tanh"),
            layers.Conv2D(3, 3, dilation_rate=(1, 3)),
            layers.SeparableConv2D(4, (2, 3), dilation_rate=2),
        ],
    ),
    "depthwise": (
        (9, 13, 2),
        lambda: [
            layers.DepthwiseConv2D(3, dilation_rate=2, padding="same", depth_multiplier=2),
            layers.DepthwiseConv2D((2, 3), dilation_rate=3),
        ],
    ),
    "in groups": (
        (9, 11, 4),
        lambda: [
            layers.Conv2D(6, 3, dilation_rate=2, groups=2, padding="same"),
            layers.Conv2D(6, (2, 3), dilation_rate=(1, 3), groups=6),
        ],
    ),
    "in space": (
        (7, 5, 6, 2),
        lambda: [layers.Conv3D(4, 3, dilation_rate=2, padding="same"), layers.Conv3D(2, 2, dilation_rate=(2, 1, 3))],
    ),
}
# By default one mesh for each model.
MESH_BY_DEFAULT = {"plain": 1, "depthwise": 2, "in groups": 1, "in space": 1}
CASES = [case for name, mesh in MESH_BY_DEFAULT.items() for case in first(1, [(name, (mesh + k) % 3) for k in range(3)])]


@lru_cache(maxsize=1)
def case(name: str) -> Case:
    shape, make_layers = MODELS[name]

    def make() -> keras.Model:
        values = inputs = keras.Input(shape)
        for layer in [*make_layers(), layers.Flatten(), layers.Dense(5)]:
            values = layer(values)
        return keras.Model(inputs, values)

    def batch(seed: int) -> tuple[list[np.ndarray], np.ndarray]:
        rng = np.random.default_rng(seed)
        return [rng.normal(size=(4, *shape))], rng.integers(0, 5, 4)

    with floats("float64"):
        return case_of(Entry(make, batch, 4))


@pytest.mark.parametrize(("name", "seed"), CASES)
def test_dilated_convolutions_give_one_device_numbers(name: str, seed: int) -> None:
    assert not [op for op in case(name).graph.operators.values() if op.type in THREE]
    view = random_strategy(case(name), MESHES[seed], seed, slides)
    with floats("float64"):
        off = differences(case(name), by_strategy(case(name), view, random_router(seed)), 1e-10)
    assert not off, "\n".join(off)


def written_out(
    image: Sequence[int], kernel: Sequence[int], rates: Sequence[int], rows: Any, crops: Any, stride: int = 1
) -> tf.Graph:
    """The three operators over constants of the graph's own."""
    rng = np.random.default_rng(0)
    with tf.Graph().as_default() as graph:
        x, w = (tf.compat.v1.placeholder_with_default(rng.normal(size=shape), shape) for shape in (image, kernel))
        batches = tf.space_to_batch(x, rates, rows)
        made = tf.raw_ops.Conv2D(input=batches, filter=w, strides=[1, stride, stride, 1], padding="VALID")
        tf.batch_to_space(made, rates, crops, name="back")
    return graph


@given(data=st.data())
def test_one_operator_gives_what_the_three_give(data: st.DataObject) -> None:
    """Windows, gaps, paddings and crops for which there is one operator give the values of the three."""
    sizes, rates, image, rows, crops = [], [], [], [], []
    for _ in range(2):
        sizes.append(data.draw(st.integers(1, 3)))
        rates.append(data.draw(st.integers(1, 3)))
        image.append(data.draw(st.integers(1, 9)))
        before, after = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 5))
        least = (sizes[-1] - 1) * rates[-1] + rates[-1]
        after += max(least - image[-1] - before - after, 0)
        after += -(image[-1] + before + after) % rates[-1]
        rows.append((before, after))
        n_results = image[-1] + before + after - (sizes[-1] - 1) * rates[-1]
        first = data.draw(st.integers(0, min(before, n_results - 1)))
        crops.append((first, data.draw(st.integers(0, min(after, n_results - 1 - first)))))
    graph = written_out((2, *image, 3), (*sizes, 3, 2), rates, rows, crops)
    back = graph.get_operation_by_name("back")
    (convolution,) = (op for op in import_graph(graph, (), targets=[back]).operators.values() if op.type == "Conv2D")
    assert convolution.result.name == "back:0" and list(convolution.attrs["dilations"]) == [1, *rates, 1]
    with graph.as_default(), tf.compat.v1.Session() as session:
        (one,) = raw_operator(convolution, [graph.get_tensor_by_name(tensor.name) for _, tensor in convolution.operands])
        got, expected = session.run([one, back.outputs[0]])
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("rows", "crops", "stride"),
    [(((2, 2), (2, 2)), ((3, 0), (0, 1)), 1), (((2, 2), (2, 2)), ((0, 0), (0, 0)), 2)],
    ids=["more cropped than padded", "strides"],
)
def test_what_is_no_dilated_convolution_stays(rows: Any, crops: Any, stride: int) -> None:
    graph = import_graph(written_out((2, 8, 8, 3), (3, 3, 3, 2), (2, 2), rows, crops, stride), ())
    assert {op.type for op in graph.operators.values()} >= {*THREE, "Conv2D"}


def test_batches_with_other_consumers_stay() -> None:
    graph = written_out((2, 8, 8, 3), (3, 3, 3, 2), (2, 2), ((2, 2), (2, 2)), ((0, 0), (0, 0)))
    with graph.as_default():
        tf.square(graph.get_operation_by_name("back").inputs[0].op.inputs[0], name="square")
    assert {op.type for op in import_graph(graph, ()).operators.values()} >= {*THREE, "Conv2D", "Square"}
