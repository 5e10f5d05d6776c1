"""Steps in micro-batches: one device's numbers, each collective as it is charged, whatever the strategy and the model."""

from __future__ import annotations

from pathlib import Path

import accumulate.models as models
import pytest
import tensorflow as tf
from helpers import zoo
from helpers.large import first
from helpers.mpirun import run_ranks
from helpers.strategies import (
    Link,
    assert_close,
    assert_variables,
    evaluate_and_check,
    feeds_of,
    local_shards,
    random_router,
    train_and_check,
    training_fetch,
)

from tensoropt.reschedule.mesh import Mesh
from tensoropt.reschedule.simulate import gather
from tensoropt.runtime.functions import Fetch
from tensoropt.sharding.resharding import PathFinder
from tensoropt.sharding.strategy import StrategyView

MESHES = (Mesh.of(1), Mesh.of(2), Mesh.of(2, 2), Mesh.of(3))
OPTIMIZERS = tuple(zoo.HYPERPARAMETERS)
COUNTS = [(2, 3), (4, 5), (8, 10), (2, 2), (2, 4), (4, 4), (4, 6), (8, 8), (8, 9)]
"""(micro-batches, seed). By default a model has one of the first two: each of the two has every second model."""
CASES = [
    case
    for number, name in enumerate(models.FUNCTIONS)
    for case in first(1, [(name, n, seed) for n, seed in (COUNTS[number % 2], COUNTS[1 - number % 2], *COUNTS[2:])])
]


def check(name: str, n: int, mesh: Mesh, seed: int, **shares: float) -> StrategyView:
    """Train by a random strategy in micro-batches; return its view of one."""
    optimizer = OPTIMIZERS[seed % len(OPTIMIZERS)]
    model, views = models.recorded(name, optimizer), models.random_view(name, optimizer, n, mesh, 3000 + seed, **shares)
    engine = models.engine_in_micro_batches(model, views, random_router(seed), in_order=seed // 2 % 2 == 1)
    train_and_check(engine, model)
    assert_variables(model, views[0], local_shards(engine))
    evaluate_and_check(engine, model)
    return views[1]


@pytest.mark.usefixtures("graphs_as_built")
@pytest.mark.parametrize(("name", "n", "seed"), CASES)
def test_random_strategies_give_one_device_numbers(name: str, n: int, seed: int) -> None:
    check(name, n, MESHES[seed % len(MESHES)], seed)


@pytest.mark.usefixtures("graphs_as_built")
@pytest.mark.parametrize(("n", "seed"), first(1, [(2, 12), (4, 14), (2, 15), (4, 17), (8, 13)]))
@pytest.mark.parametrize("name", ["mlp", "attention", "windows"])
def test_each_micro_batch_regathers_copies_and_rematerializes_operators(name: str, n: int, seed: int) -> None:
    shares = {"share_regathered": 0.5, "share_rematerialized": 0.7}
    strategy = check(name, n, MESHES[seed % len(MESHES)], seed, **shares).strategy
    assert strategy.regathered and strategy.rematerialized


@pytest.mark.parametrize("name", first(1, ["mlp", "attention"]))
def test_numbers_stay_with_tensorflows_graph_optimizer(name: str, everything: bool) -> None:
    """TensorFlow's graph optimizer merges equal operators and removes control dependencies."""
    for seed in (71, 74) if everything else (71,):
        check(name, 2, Mesh.of(2), seed)


@pytest.mark.usefixtures("graphs_as_built")
@pytest.mark.parametrize("mesh", first(2, [Mesh.of(2), Mesh.of(2, 2), Mesh.of(1), Mesh.of(3)]), ids=str)
def test_fetches_of_a_step_are_of_the_full_batch_in_order(mesh: Mesh) -> None:
    """Whole, and in the pieces of the whole batch's layout, with and without a share of samples for each device."""
    model = models.recorded("mlp", "sgd")
    names = ("hidden:0", "accuracy:0", "x:0")
    tensors = [tensor for name in names if (tensor := model.graph.resolve(name)) is not None]
    for seed in range(2):
        views = models.random_view("mlp", "sgd", 2, mesh, seed)
        feeds = feeds_of(model.graph, model.batches[0])
        engine = models.engine_in_micro_batches(model, views, PathFinder(Link()))
        alone = engine.run(Fetch(tuple((tensor, False) for tensor in tensors)), feeds)
        step = training_fetch(model)
        wanted = tuple((tensor, is_local) for is_local in (False, True) for tensor in tensors)
        found = engine.run(Fetch(wanted, step.train_steps), feeds)
        for tensor, values, expected in zip(tensors, found, alone, strict=False):
            for value in values:
                assert_close(value, expected[0], 1e-12, tensor.name)
        for tensor, shards, expected in zip(tensors, found[len(tensors) :], alone, strict=True):
            layout = views[0].layout(tensor).with_partial(())
            assert_close(gather(shards, layout, tensor.shape), expected[0], 1e-12, f"pieces of {tensor.name}")


@pytest.mark.parametrize(("n_ranks", "collectives"), [(2, "mpi"), (2, "link")])
def test_micro_batches_between_processes_give_one_device_numbers(
    n_ranks: int, collectives: str, everything: bool
) -> None:
    """One strategy of each model by ``--all``, else of the first three by MPI and of the first over a link."""
    worker, count = Path(__file__).with_name("worker.py"), len(models.FUNCTIONS)
    if not everything:
        count = 3 if collectives == "mpi" else 1
    result = run_ranks(n_ranks, "-m", "mpi4py", worker, count, collectives, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{count} strategies in micro-batches" in result.stdout


def test_micro_batches_are_cut_from_each_ranks_share() -> None:
    worker = Path(__file__).with_name("shares_worker.py")
    result = run_ranks(2, "-m", "mpi4py", worker, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "local feeds are full feeds" in result.stdout


def test_dtype_of_what_is_fetched() -> None:
    """A sum over slices has the type of its tensor."""
    model = models.recorded("mlp", "sgd")
    engine = models.engine_in_micro_batches(model, models.random_view("mlp", "sgd", 4, Mesh.of(2), 5), PathFinder(Link()))
    (losses,) = engine.run(training_fetch(model), feeds_of(model.graph, model.batches[0]))
    assert tf.as_dtype(losses[0].dtype) == tf.float64 and losses[0].shape == ()
