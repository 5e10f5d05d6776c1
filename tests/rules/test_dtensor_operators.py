"""DTensor's own lists of operators, as they come with TensorFlow: each has a rule, or a reason why it runs replicated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.dtensor.python.tests import test_util_ops as dtensor

from tensoropt.frontend.importer import import_graph
from tensoropt.ir.graph import SOURCES
from tensoropt.rules.registry import rule_of

DRAWN = [f"StatelessRandom{name}" for name in ("Normal", "Uniform", "UniformFullInt")]
REASONS = {name: f"operator type {name} has no rule" for name in (*DRAWN, "StatelessTruncatedNormal")}
"""By type of operator, why it runs replicated: TensorFlow draws by keys and counters today, which are split."""


def operands(dtype: tf.DType, n: int, *shape: int) -> list[tf.Tensor]:
    return [tf.compat.v1.placeholder(dtype, shape or [4, 6]) for _ in range(n)]


def of(entries: Any, dtype: tf.DType, n: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    for entry in entries:
        yield entry["testcase_name"], lambda op=entry["op"]: op(*operands(dtype, n))


def random_operator(entry: dict[str, Any]) -> Any:
    version, shape, seed = entry["op_version"], tf.constant([4, 6]), tf.compat.v1.placeholder(tf.int32, [2])
    if version == "V1":
        return entry["op"](shape=shape, seed=seed, dtype=entry["dtype"])
    drawn = {"shape": shape, "key": operands(tf.uint64, 1, 1)[0], "counter": operands(tf.uint64, 1, 2)[0], "alg": 1}
    if version == "V2_RANGE":
        return entry["op"](**drawn, minval=tf.constant(0), maxval=tf.constant(9))
    return entry["op"](**drawn, dtype=entry["dtype"])


def everything() -> Iterator[tuple[str, Callable[[], Any]]]:
    yield from of(dtensor.UNARY_OPS, tf.float32, 1)
    yield from of(dtensor.BINARY_FLOAT_OPS, tf.float32, 2)
    yield from of(dtensor.BINARY_INT_OPS, tf.int32, 2)
    yield from of(dtensor.BINARY_BOOL_OPS, tf.bool, 2)
    for entry in dtensor.REDUCTION_OPS:
        yield entry["testcase_name"], lambda op=entry["op"]: op(*operands(tf.float32, 1), axis=0)
    for entry in dtensor.RANDOM_OPS:
        yield entry["testcase_name"], lambda entry=entry: random_operator(entry)
    for entry in dtensor.EXPANSION_OPS:
        yield entry["testcase_name"], lambda entry=entry: entry["op"](*entry["inputs"]())
    for padding in dtensor.PADDINGS:
        how = {"ksize": 2, "strides": 2, "padding": padding["padding"]}
        windows = [(*each, 2) for each in dtensor.BATCH_PARALLEL_2D_WINDOW_OPS]
        for name, op, rank in [*windows, *((*each, 3) for each in dtensor.BATCH_PARALLEL_3D_WINDOW_OPS)]:
            yield name, lambda op=op, rank=rank, how=how: op(*operands(tf.float32, 1, 4, *[6] * rank, 2), **how)
    for name, op, rank in dtensor.FFT_OPS:
        yield name, lambda op=op, rank=rank: op(*operands(tf.complex64, 1, 4, *[6] * rank))
    for name, op, rank, dtype in dtensor.RFFT_OPS:
        yield name, lambda op=op, rank=rank, dtype=dtype: op(*operands(dtype, 1, 4, *[6] * rank), [6] * rank)


CASES = list(everything())


def test_all_lists_are_taken() -> None:
    lists = {name for name in vars(dtensor) if name.isupper()}
    # Lists of operators with broadcasting are part of others.
    assert len([name for name in lists if "WITH_BROADCASTING" not in name]) == 12 and len(CASES) > 120


@pytest.mark.parametrize(("name", "make"), CASES, ids=[f"{i}-{name}" for i, (name, _) in enumerate(CASES)])
def test_a_rule_or_a_reason(name: str, make: Callable[[], Any]) -> None:
    with tf.Graph().as_default() as graph:
        make()
    found = [op for op in import_graph(graph, ()).operators.values() if op.type not in SOURCES]
    for op in found:
        rule = rule_of(op)
        assert rule.without == REASONS.get(op.type, ""), op
        assert rule.without or rule.splittable, op
