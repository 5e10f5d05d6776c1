"""The graphs of all ranks are equal in structure, blocks of 1 beside blocks of 2 included.

Every rank's graph is built in one process, with a communicator that is never called: building communicates nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import tensorflow as tf
from helpers import zoo
from helpers.large import first
from helpers.strategies import Link, engine_of, feeds_of, random_strategy, training_fetch

from tensoropt.lowering.resharding.backends import CommunicatingBackend
from tensoropt.lowering.resharding.in_graph import GraphBackend
from tensoropt.lowering.resharding.path_callbacks import OVERLAPPABLE_NAME
from tensoropt.lowering.resharding.reshard import Backend
from tensoropt.program.fetch import Fetch
from tensoropt.reschedule.layout import Axes
from tensoropt.reschedule.mesh import Mesh
from tensoropt.runtime.engine import Engine
from tensoropt.runtime.step.functions import BuiltFunction, Feed
from tensoropt.sharding.resharding import PathFinder


class Operators:
    """Collectives as operators of graphs that are not run."""

    joins = in_rank_order = True
    reduce_scatter = None

    def all_gather(self, axes: Axes, flat: tf.Tensor, counts: Sequence[int], name: str) -> tf.Tensor:
        return tf.raw_ops.PlaceholderWithDefault(input=flat, shape=[None], name=name)

    def all_to_all(self, axes: Axes, flat: tf.Tensor, counts: Sequence[Sequence[int]], name: str) -> tf.Tensor:
        return self.all_gather(axes, flat, counts[0], name)

    def all_reduce(self, axes: Axes, value: tf.Tensor, op: str, name: str) -> tf.Tensor:
        return tf.raw_ops.PlaceholderWithDefault(input=value, shape=value.shape, name=f"{name}_{op}")


def by_callbacks(mesh: Mesh, rank: int) -> Backend:
    return CommunicatingBackend(mesh, rank, Nobody())


def by_operators(mesh: Mesh, rank: int) -> Backend:
    return GraphBackend(mesh, rank, Operators())


class Nobody:
    """A communicator for graphs that are not run."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"building a graph must not communicate, but it asked for {name}")


def digests(engine: Engine, functions: list[tuple[Fetch, tuple[Feed, ...]]]) -> list[str]:
    found: list[str] = []
    engine.states[0].agree = lambda digest, log: found.append(digest)
    for fetch, feeds in functions:
        engine.function(fetch, feeds)
    return found


@pytest.mark.parametrize(("backend", "mesh"), first(2, [
    (by_callbacks, Mesh.of(4)), (by_operators, Mesh.of(2)), (by_callbacks, Mesh.of(2)), (by_operators, Mesh.of(4))
]), ids=lambda each: getattr(each, "__name__", None) or str(each))  # fmt: skip
@pytest.mark.parametrize("function", first(1, [zoo.broadcasting, zoo.mlp, zoo.attention]))
def test_all_ranks_build_graphs_of_one_structure(
    function: Any, mesh: Mesh, backend: Callable[..., Backend], everything: bool
) -> None:
    model = zoo.record(function, "momentum")
    for seed in range(2 if everything else 1):
        view = random_strategy(model, mesh, seed, prefers=lambda config: bool(config.used_axes))
        feeds = tuple(feeds_of(model.graph, model.batches[0]))
        metrics = Fetch(tuple((model.graph.tensors[name], False) for name in model.metrics))
        wanted = [(training_fetch(model), feeds), (metrics, feeds)]
        by_rank = [
            digests(engine_of(model, view, PathFinder(Link()), backend(mesh, rank)), wanted)
            for rank in range(mesh.n_devices)
        ]
        assert len(by_rank[0]) == 2
        assert all(one == by_rank[0] for one in by_rank), f"seed {seed}"


def test_digests_tell_structures_apart() -> None:
    model, mesh = zoo.record(zoo.mlp, "sgd"), Mesh.of(2)
    feeds = tuple(feeds_of(model.graph, model.batches[0]))
    by_seed = [
        digests(
            engine_of(
                model, random_strategy(model, mesh, seed), PathFinder(Link()), CommunicatingBackend(mesh, 0, Nobody())
            ),
            [(training_fetch(model), feeds)],
        )[0]
        for seed in range(3)
    ]
    assert len(set(by_seed)) == 3


def callbacks_of(built: BuiltFunction) -> list[tf.Operation]:
    return [op for op in built.call.graph.get_operations() if op.type == "PyFunc"]


def needed(op: tf.Operation) -> set[str]:
    """The names of all operators that one waits for."""
    found: set[str] = set()
    pending = [op]
    while pending:
        sources = {source for each in [pending.pop()] for source in (*(t.op for t in each.inputs), *each.control_inputs)}
        pending += [source for source in sources if source.name not in found]
        found.update(source.name for source in sources)
    return found


@pytest.mark.parametrize("optimizer", first(1, ["adam", "momentum"]))
@pytest.mark.parametrize("function", [zoo.mlp, zoo.cnn, zoo.attention])
def test_overlappable_collectives_have_their_own_chain(function: Any, optimizer: str, everything: bool) -> None:
    """Nothing else waits for the overlappable chain, by data or by TensorFlow's order of stateful operators."""
    model, mesh = zoo.record(function, optimizer), Mesh.of(2)
    backend = CommunicatingBackend(mesh, 0, Nobody(), overlappable=CommunicatingBackend(mesh, 0, Nobody()))
    for seed in range(3 if everything else 1):
        engine = engine_of(model, random_strategy(model, mesh, seed), PathFinder(Link()), backend)
        built = engine.function(training_fetch(model), tuple(feeds_of(model.graph, model.batches[0])))
        overlappable = [op for op in callbacks_of(built) if OVERLAPPABLE_NAME in op.name]
        critical = [op for op in callbacks_of(built) if op not in overlappable]
        for chain in (overlappable, critical):
            for before, callback in pairwise(chain):
                assert callback.inputs[0] is before.outputs[0]
        names = {op.name for op in overlappable}
        assert overlappable and sum(entry.is_overlappable for entry in built.log) >= len(overlappable)
        loss = built.call.graph.outputs[0].op
        assert all(names.isdisjoint(needed(op)) for op in [*critical, loss.inputs[0].op])
        consumers = {op.type for op in built.call.graph.get_operations() if names & needed(op) and op not in overlappable}
        assert any(kind.startswith("ResourceApply") for kind in consumers)
        assert not any(kind.startswith(("Conv2D", "MatMul", "Relu", "Softmax")) for kind in consumers), consumers
