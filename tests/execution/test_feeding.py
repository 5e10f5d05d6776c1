"""Fetching shards and groups by the public API on four emulated devices; local feeds between processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers import zoo
from helpers.large import first
from helpers.mpirun import run_ranks

import tensoropt


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


def test_variables_operations_and_groups(trained: Run) -> None:
    before, weights = tensoropt.run([trained.counted, trained.weights])
    assert weights.shape == (9, 10)
    assert tensoropt.run(trained.group, trained.feeds) is None
    assert tensoropt.run([trained.train, trained.built.loss], trained.feeds)[0] is None
    after, changed = tensoropt.run([trained.counted, trained.weights])
    assert after == before + 1, "the group counts, the step alone doesn't"
    assert not np.array_equal(weights, changed)


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


@pytest.mark.parametrize(("n_ranks", "micro_batches"), first(2, [(2, 1), (2, 4), (3, 1)]))
def test_local_feeds_between_processes(n_ranks: int, micro_batches: int) -> None:
    """Each rank feeds its own share of the batch, fetches its own piece, and is told what its share should be."""
    worker = Path(__file__).with_name("feeding_worker.py")
    result = run_ranks(n_ranks, "-m", "mpi4py", worker, "mpi", micro_batches, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"local feeds are full feeds on {n_ranks} ranks" in result.stdout
