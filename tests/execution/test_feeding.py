"""Feeding and fetching by the public API on four emulated devices, and what is refused; local feeds between processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from helpers import zoo
from helpers.large import first
from helpers.mpirun import run_ranks
from helpers.strategies import assert_close

import tensoropt
from tensoropt import InputError


class Run(NamedTuple):
    built: zoo.Built
    train: Any
    feeds: dict[Any, np.ndarray]
    counted: Any
    weights: Any
    group: Any


@pytest.fixture(scope="module")
def trained() -> Iterator[Run]:
    """An MLP on four emulated devices, its first product split over batch and columns."""
    tensoropt.init(hardware="v100-1x4", seed=1)
    built = zoo.mlp(tensoropt)
    counter = tensoropt.get_variable("counter", [], tensoropt.int32, tensoropt.zeros_initializer(), trainable=False)
    counted = tensoropt.assign_add(counter, 1)
    weights = tensoropt.global_variables()[0]
    train = tensoropt.MomentumOptimizer(0.1).minimize(built.loss)
    group = tensoropt.group(train, counted)
    plan = tensoropt.find_strategy(parallelism=4, force={"MatMul": {"m": 2, "n": 2}})
    tensoropt.build_execution_graph(engine="tensorflow", plan=plan, collectives="emulated")
    yield Run(built, train, {key: values[0] for key, values in built.inputs.items()}, counter, weights, group)


def test_names_tensors_and_structures(trained: Run) -> None:
    class Pair(NamedTuple):
        first: Any
        second: Any

    loss, hidden = trained.built.loss, trained.built.inner["hidden"]
    by_tensor = tensoropt.run(loss, trained.feeds)
    by_name = tensoropt.run(loss.name, {key.name: value for key, value in trained.feeds.items()})
    assert by_tensor.shape == () and by_tensor == by_name
    found = tensoropt.run({"a": [loss, hidden.name], "b": Pair("accuracy:0", (loss,))}, trained.feeds)
    assert set(found) == {"a", "b"} and isinstance(found["b"], Pair)
    assert found["a"][0] == by_tensor and found["b"].second == (by_tensor,)
    assert found["a"][1].shape == (7, 10) and 0 <= found["b"].first <= 1


def test_variables_operations_and_groups(trained: Run) -> None:
    before, weights = tensoropt.run([trained.counted, trained.weights])
    assert weights.shape == (9, 10)
    assert tensoropt.run(trained.group, trained.feeds) is None
    assert tensoropt.run([trained.train, trained.built.loss], trained.feeds)[0] is None
    after, changed = tensoropt.run([trained.counted, trained.weights])
    assert after == before + 1, "the group counts, the step alone doesn't"
    assert not np.array_equal(weights, changed)


def test_training_is_that_of_plain_tensorflow(trained: Run) -> None:
    tensoropt.current_session().engine.initialize()
    names = ["w1", "b1", "w2", "scale"]
    first = tensoropt.run([f"{name}:0" for name in names])
    batches = [{key: values[step] for key, values in trained.built.inputs.items()} for step in range(zoo.N_BATCHES)]
    losses = [tensoropt.run([trained.train, trained.built.loss], batch)[1] for batch in batches]
    after = tensoropt.run([f"{name}:0" for name in names])
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        built = zoo.mlp(tf.compat.v1)
        minimize = tf.compat.v1.train.MomentumOptimizer(0.1, 0.9).minimize(built.loss)
        session.run(tf.compat.v1.global_variables_initializer())
        variables = tf.compat.v1.trainable_variables()
        assert [variable.op.name for variable in variables] == names
        for variable, value in zip(variables, first, strict=True):
            session.run(variable.initializer, {variable.initializer.inputs[1]: value})
        for step, loss in enumerate(losses):
            named = {key.name: value for key, value in batches[step].items()}
            assert_close(loss, session.run([minimize, built.loss], named)[1], 1e-12, f"loss {step}")
        for variable, value in zip(variables, after, strict=True):
            assert_close(value, session.run(variable), 1e-12, variable.name)


def test_an_inner_tensor_is_fed_in_place_of_what_makes_it(trained: Run) -> None:
    hidden, softmax = trained.built.inner["hidden"], trained.built.metrics[1]
    expected, value = tensoropt.run([softmax, hidden], trained.feeds)
    # Without x, which is then not needed.
    assert_close(tensoropt.run(softmax, {hidden: value}), expected, 1e-12, "softmax")
    assert_close(tensoropt.run(softmax, {hidden: 0 * value}), np.full((7, 5), 0.2), 1e-12, "softmax of zeros")


def test_local_fetches_are_this_devices_shard(trained: Run) -> None:
    hidden = trained.built.inner["hidden"]
    engine = tensoropt.current_session().engine
    tensor = engine.graph.resolve(hidden.name)
    shard, whole = tensoropt.run([tensoropt.local(hidden), hidden], trained.feeds)
    (start, end), (left, right) = engine.views[0].whole.layout(tensor).bounds(tensor.shape, 0)
    assert np.array_equal(shard, whole[start:end, left:right])
    weights = tensoropt.run(tensoropt.local(trained.weights))
    layout = engine.views[0].whole.layout(engine.graph.resolve(trained.weights.name))
    assert weights.shape == layout.local_shape((9, 10), 0)


def test_numbers_are_converted_where_nothing_is_lost(trained: Run) -> None:
    x, y = trained.feeds
    whole = {x: trained.feeds[x].round(), y: trained.feeds[y]}
    expected = tensoropt.run(trained.built.loss, whole)
    as_lists = {x: whole[x].astype(int).tolist(), y: whole[y].tolist()}
    assert tensoropt.run(trained.built.loss, as_lists) == expected
    assert tensoropt.run(trained.built.loss, {x: whole[x].astype(np.float32), y: whole[y]}) == expected


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (np.zeros((7, 8)), r"fed for x:0 \(zoo.py:\d+\) has shape \[7, 8\], expected \[7, 9\]: the full batch"),
        (np.zeros((3, 9)), r"has shape \[3, 9\], expected \[7, 9\]"),
        (np.zeros((7, 9), complex), r"fed for x:0 \(zoo.py:\d+\) has type complex128, expected float64; convert it"),
        (np.full((7, 9), "a"), r"has type <U1, expected float64"),
        ([[1.0], [1.0, 2.0]], "is not an array"),
    ],
    ids=["width", "batch", "complex", "text", "ragged"],
)
def test_wrong_values_are_refused(trained: Run, wrong: Any, sentence: str) -> None:
    x, _ = trained.feeds
    with pytest.raises(InputError, match=sentence):
        tensoropt.run(trained.built.loss, {**trained.feeds, x: wrong})


def test_wrong_names_and_missing_feeds_are_refused(trained: Run) -> None:
    _, y = trained.feeds
    with pytest.raises(InputError, match=r"placeholder 'x' \(zoo.py:\d+\) isn't fed"):
        tensoropt.run(trained.built.loss, {y: trained.feeds[y]})
    with pytest.raises(InputError, match="feed_dict names 'nothing:0', which isn't a tensor of the recorded model"):
        tensoropt.run(trained.built.loss, {**trained.feeds, "nothing:0": 1.0})
    with pytest.raises(InputError, match="fetch 'nothing:0' isn't part of the recorded model"):
        tensoropt.run("nothing:0", trained.feeds)
    with pytest.raises(InputError, match="comes before build_execution_graph"):
        tensoropt.constant(1.0)


@pytest.mark.parametrize(("n_ranks", "micro_batches"), first(2, [(2, 1), (2, 4), (3, 1)]))
def test_local_feeds_between_processes(n_ranks: int, micro_batches: int) -> None:
    """Each rank feeds its own share of the batch, fetches its own piece, and is told what its share should be."""
    worker = Path(__file__).with_name("feeding_worker.py")
    result = run_ranks(n_ranks, "-m", "mpi4py", worker, "mpi", micro_batches, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"local feeds are full feeds on {n_ranks} ranks" in result.stdout
