"""Random operators over split results: one device's numbers to the bit, and no more of them drawn than needed."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from helpers import zoo
from helpers.strategies import engine_of, feeds_of, random_router, random_strategy, training_fetch
from oracles.shards import gather

from tensoropt.frontend.importer import import_graph
from tensoropt.ir.graph import Operator
from tensoropt.lowering.operators import Job, emit, raw_operator
from tensoropt.lowering.ops import random
from tensoropt.lowering.resharding.backends import EmulatedBackend
from tensoropt.program.fetch import Fetch
from tensoropt.reschedule.layout import Shape
from tensoropt.reschedule.mesh import Mesh
from tensoropt.rules.config_arrays import ConfigArrays
from tensoropt.rules.random import FROM_KEY, FROM_SEED
from tensoropt.rules.registry import rule_of
from tensoropt.rules.rule import Config, interface_of
from tensoropt.runtime.step.functions import structure_digest

from .case import Case
from .cases import CASES
from .validate import session

DRAWING = [case for case in CASES if case.type in (*FROM_KEY, *FROM_SEED)]
FLOATS = ("float16", "bfloat16", "float32", "float64")
WHOLE = ("int32", "int64", "uint32", "uint64")
LAYOUTS: tuple[tuple[Mesh, Shape, str], ...] = (
    (Mesh.of(2), (301, 203), "d0:a"),  # large enough to be drawn by several threads
    (Mesh.of(3), (7, 3, 5), "d0:a"),
    (Mesh.of(2), (6, 5, 7), "d2:a"),
    (Mesh.of(2, 2), (5, 6, 7), "d0:a d1:b"),
    (Mesh.of(2, 2), (3, 5), "d0:a d1:b"),
    (Mesh.of(3), (2, 4, 9001), "d1:a"),  # a run for each index of the first dimension
    (Mesh.of(2), (2, 4, 9001), "d2:a"),  # a run for each index of the first two
)


def _of(op: Operator, shape: Shape, dtype: str) -> Operator:
    """The same operator with a result of another shape and type."""
    attrs = {**op.attrs, "dtype": tf.as_dtype(dtype)} if "dtype" in op.attrs else op.attrs
    result = replace(op.result, shape=shape, dtype=dtype)
    return replace(op, outputs=(result,), statics={**op.statics, 0: np.array(shape, np.int32)}, attrs=attrs)


def _emitted(op: Operator, values: list[np.ndarray], config: Config, ranks: tuple[int, ...]) -> list[tf.Tensor]:
    rule = rule_of(op)
    runs = [tf.zeros([], tf.int64)] * len(ranks)
    job = Job(op, rule, config, interface_of(rule, config), ranks, lambda k, shards: shards, runs=lambda: runs)
    return emit(job, [[tf.constant(value)] * len(ranks) for value in values])[0]


def _drawn(op: Operator, values: list[np.ndarray], config: Config | None) -> np.ndarray:
    """What all ranks draw together, or what one device draws; replicas are compared to the bit."""
    with tf.Graph().as_default(), session() as running:
        if config is None:
            remaining = iter(values)
            inputs = [op.statics[i] if tensor is None else next(remaining) for i, tensor in enumerate(op.inputs)]
            return running.run(raw_operator(op, inputs)[0])
        shards = running.run(_emitted(op, values, config, tuple(range(config.mesh.n_devices))))
        return gather(shards, interface_of(rule_of(op), config).results[0], op.result.shape)


@pytest.mark.parametrize("case", DRAWING, ids=str)
def test_all_ranks_draw_what_one_device_draws(case: Case) -> None:
    types = FLOATS if case.op.result.is_float else ("int32", "int64") if len(case.op.inputs) % 3 == 0 else WHOLE
    for number, (mesh, shape, split) in enumerate(LAYOUTS):
        op = _of(case.op, shape, types[number % len(types)])
        values = [value if value.dtype == np.uint64 else value.astype(op.result.dtype) for value in case.values]
        if case.type in FROM_KEY:  # the lower half overflows within the result
            values[1] = np.array([2**64 - 3, 2**64 - 1 - number], np.uint64)
        config, structures = Config.parse(mesh, split), set()
        assert _drawn(op, values, config).tobytes() == _drawn(op, values, None).tobytes(), (op.result, split)
        for rank in range(mesh.n_devices):
            with tf.Graph().as_default() as graph:
                _emitted(op, values, config, (rank,))
            structures.add(structure_digest(graph, ()))
        assert len(structures) == 1, "ranks build different graphs"


@pytest.mark.parametrize("case", [case for case in DRAWING if case.type == "StatelessRandomUniformV2"], ids=str)
@pytest.mark.parametrize(
    ("shape", "split", "n"),
    [
        ((64, 8, 100), "d0:ab", 16 * 8 * 100),
        ((64, 8, 100), "d0:a d1:b", 32 * 8 * 100),  # rows of the batch, of which half are cut out
        ((4, 8, 100, 100), "d0:a d1:b", 2 * 4 * 100 * 100),  # a run for each sample
        ((4, 100), "d1:ab", 4 * 100),
    ],
)
def test_ranks_draw_the_rows_of_their_blocks(case: Case, shape: Shape, split: str, n: int) -> None:
    """As much as is predicted, to within the groups at the ends of runs."""
    op, config = _of(case.op, shape, "float32"), Config.parse(Mesh.of(2, 2), split)
    drawn: list[tf.Tensor] = []

    def counted(op: Operator, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
        drawn.append(inputs[0])
        return raw_operator(op, inputs)

    with mock.patch.object(random, "raw_operator", counted):
        _drawn(op, list(case.values), config)
    assert ConfigArrays.of(rule_of(op), [config]).local_points() == n
    sizes = [int(tf.get_static_value(each.op.inputs[0])[0]) for each in drawn]
    assert 0 <= sum(sizes) - 4 * n < 4 * len(sizes)


def test_operators_without_a_seed_get_the_same_one_wherever_they_are_recorded() -> None:
    """TensorFlow would seed them by chance; the seed comes from the name, so two operators differ."""

    def recorded() -> dict[str, tuple[int, int]]:
        with tf.Graph().as_default() as graph:
            kept = [tf.random.uniform([3], name="first"), tf.random.normal([3], name="second")]
            kept += [tf.random.normal([3], seed=5)]
            operators = import_graph(graph, ()).operators
        assert len(kept) == 3
        return {op.name: (op.attrs["seed"], op.attrs["seed2"]) for op in operators.values() if "seed" in op.attrs}

    seeds = recorded()
    assert seeds == recorded() and len(set(seeds.values())) == 3 and (0, 0) not in seeds.values()


def test_a_seed_goes_on_whatever_is_fetched() -> None:
    """As in a session of TensorFlow: a function that is fetched beside the training step doesn't begin from the seed."""
    model, mesh = zoo.record(zoo.noise, "sgd"), Mesh.of(3)
    view = random_strategy(model, mesh, 5, lambda config: bool(config.used_axes))
    engine, feeds = engine_of(model, view, random_router(5), EmulatedBackend(mesh)), feeds_of(model.graph, model.batches[0])
    (op,) = (op for op in model.graph.operators.values() if op.type == "RandomStandardNormal")
    with tf.Graph().as_default(), session() as running:
        drawn = raw_operator(op, [op.statics[0]])[0]
        expected = [running.run(drawn) for _ in range(6)]
    alone, trained = Fetch(((op.result, False),)), training_fetch(model)
    beside = Fetch(((op.result, False), *trained.tensors), trained.train_steps)
    for number, fetch in enumerate((alone, trained, beside, alone, trained, beside)):
        values = engine.run(fetch, {} if fetch is alone else feeds)
        assert fetch is trained or all(np.array_equal(value, expected[number]) for value in values[0]), number
