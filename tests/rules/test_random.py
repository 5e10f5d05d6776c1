"""Random operators over split results: replicas, the statistics of blocks drawn apart, and one device's numbers."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import tensorflow as tf

from tensoropt.common.errors import InputError
from tensoropt.common.settings import RandomMode, random_mode
from tensoropt.frontend.importer import import_graph
from tensoropt.ir.graph import Operator
from tensoropt.lowering.operators import Job, emit, raw_operator
from tensoropt.lowering.ops.random import block_index
from tensoropt.reschedule.layout import Layout
from tensoropt.reschedule.mesh import Mesh
from tensoropt.reschedule.simulate import gather
from tensoropt.rules.random import FROM_KEY, FROM_SEED
from tensoropt.rules.registry import rule_of
from tensoropt.rules.rule import Config, configs, interface_of

from .case import Case
from .cases import CASES
from .validate import session

MESH = Mesh.of(2, 2)
DRAWING = [case for case in CASES if case.type in (*FROM_KEY, *FROM_SEED)]
CONTINUOUS = [case for case in DRAWING if case.op.result.is_float]
# Mean and standard deviation of what the operators draw; a normal distribution cut off at two standard deviations.
MOMENTS = {"Uniform": (0.5, 12**-0.5), "Normal": (0.0, 1.0), "TruncatedNormal": (0.0, 0.87962566)}


def _sized(op: Operator, shape: tuple[int, ...]) -> Operator:
    """The same operator with a larger result."""
    result = replace(op.result, shape=shape)
    return replace(op, outputs=(result,), statics={**op.statics, 0: np.array(shape, np.int32)})


def _drawn(op: Operator, values: list[np.ndarray], config: Config, mode: RandomMode) -> tuple[Layout, list[np.ndarray]]:
    """The values that each rank draws."""
    rule = rule_of(op)
    interface = interface_of(rule, config)
    ranks = tuple(range(config.mesh.n_devices))
    with tf.Graph().as_default(), session() as running:
        job = Job(op, rule, config, interface, ranks, lambda k, shards: shards, mode)
        (results,) = emit(job, [[tf.constant(value)] * len(ranks) for value in values])
        return interface.results[0], running.run(results)


def _on_one_device(op: Operator, values: list[np.ndarray]) -> np.ndarray:
    remaining = iter(values)
    with tf.Graph().as_default(), session() as running:
        inputs = [op.statics[i] if tensor is None else tf.constant(next(remaining)) for i, tensor in enumerate(op.inputs)]
        return running.run(raw_operator(op, inputs)[0])


@pytest.mark.parametrize("case", DRAWING, ids=str)
def test_replicas_have_equal_bits_and_other_blocks_have_others(case: Case) -> None:
    for config in configs(rule_of(case.op), MESH):
        layout, shards = _drawn(case.op, list(case.values), config, RandomMode.FOLDED)
        gather(shards, layout, case.op.result.shape)  # which compares replicas to the bit
        by_place = {block_index(layout, rank): shard for rank, shard in enumerate(shards)}
        assert len(by_place) == np.prod([MESH.size_of(axes) for axes in layout.splits])
        # The first elements of two blocks are the first numbers of two streams.
        firsts = [shard.ravel()[:2].tobytes() for shard in by_place.values()]
        assert len(set(firsts)) == len(firsts), config


@pytest.mark.parametrize("case", DRAWING, ids=str)
def test_a_result_that_is_not_split_is_that_of_one_device(case: Case) -> None:
    _, shards = _drawn(case.op, list(case.values), Config.parse(MESH, "-"), RandomMode.FOLDED)
    assert all(np.array_equal(shard, _on_one_device(case.op, list(case.values))) for shard in shards)


@pytest.mark.parametrize("case", DRAWING, ids=str)
def test_the_exact_mode_draws_what_one_device_draws(case: Case) -> None:
    """Large tensors, which TensorFlow draws with several threads, are drawn alike, too."""
    op = _sized(case.op, (301, 203))
    layout, shards = _drawn(op, list(case.values), Config.parse(MESH, "d0:a d1:b"), RandomMode.ONE_DEVICE)
    assert np.array_equal(gather(shards, layout, op.result.shape), _on_one_device(op, list(case.values)))


@pytest.mark.parametrize("case", CONTINUOUS, ids=str)
def test_blocks_have_the_right_statistics_and_are_independent(case: Case) -> None:
    """Bounds of five standard deviations; seeds are fixed, so the test always goes out the same."""
    op, (mean, deviation) = _sized(case.op, (400, 500)), _moments(case.type)
    config = Config.parse(Mesh.of(2, 2), "d0:ab")
    _, shards = _drawn(op, list(case.values), config, RandomMode.FOLDED)
    n = shards[0].size
    for shard in shards:
        assert abs(shard.mean() - mean) < 5 * deviation / n**0.5
        # The variance of a sample variance is at most that of a normal distribution's.
        assert abs(shard.var() - deviation**2) < 5 * deviation**2 * (2 / n) ** 0.5
    for one, other in combinations([shard.ravel() for shard in shards], 2):
        # No lag in the streams either: a block isn't another one shifted by a few numbers.
        for lag in range(-4, 5):
            shifted = np.roll(other, lag)
            assert abs(np.corrcoef(one, shifted)[0, 1]) < 5 / n**0.5


def _moments(op_type: str) -> tuple[float, float]:
    return next(MOMENTS[name] for name in ("TruncatedNormal", "Normal", "Uniform") if name in op_type)


def test_whole_numbers_stay_within_their_limits_in_each_block() -> None:
    case = next(case for case in DRAWING if case.type == "StatelessRandomUniformIntV2")
    low, high = case.values[2], case.values[3]
    _, shards = _drawn(_sized(case.op, (200, 200)), list(case.values), Config.parse(MESH, "d0:ab"), RandomMode.FOLDED)
    assert all(set(np.unique(shard)) == set(range(low, high)) for shard in shards)


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


def test_the_environment_says_how_to_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENSOROPT_RANDOM", raising=False)
    assert random_mode() is RandomMode.FOLDED
    monkeypatch.setenv("TENSOROPT_RANDOM", "one_device")
    assert random_mode() is RandomMode.ONE_DEVICE
    monkeypatch.setenv("TENSOROPT_RANDOM", "exact")
    with pytest.raises(InputError, match="TENSOROPT_RANDOM is 'exact'; expected 'folded' or 'one_device'"):
        random_mode()
