"""Every rule, every config: values and gradients are the unsplit operator's.

By default all configs on the mesh (2), and one, drawn with a fixed seed, on (3), (2,2) or (2,3), on which cases are in turn.
Of cases whose rule is the same data and whose lowering is the same function, only the first is on two meshes: the others,
of which only TensorFlow's own operator and its gradient differ, have one config on (2).
``pytest tests/rules --all`` leaves none out, which takes several times as long.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from tensoropt.ir.body import COMPOSITES, VALUE_SHAPED
from tensoropt.lowering import operators
from tensoropt.reschedule.mesh import Mesh
from tensoropt.rules import registry
from tensoropt.rules.configs import configs
from tensoropt.rules.registry import _RULES, rule_of
from tensoropt.rules.rule import Config, Interface, OperandSharding, Rule, interface_of
from tensoropt.sharding.resharding import inner_reshardings

from .case import Case
from .cases import CASES
from .validate import truth_of, validate

SMALLEST, OTHERS = Mesh.of(2), (Mesh.of(3), Mesh.of(2, 2), Mesh.of(2, 3))
COMPILED = 2
"""How many configs are tried at most, by default, where XLA compiles the operator for every config and rank."""


def case_of(label: str) -> Case:
    (found,) = (case for case in CASES if case.label == label)
    return found


@cache
def _firsts() -> frozenset[Case]:
    """Return the first of the cases whose rule is the same data, and which are lowered by the same function."""
    found: dict[object, Case] = {}
    for case in CASES:
        special = operators.special_lowering(case.op.type)
        rule, dtypes = replace(rule_of(case.op), flops_per_point=0.0), [tensor.dtype for _, tensor in case.op.operands]
        found.setdefault((repr(rule), str(dtypes), case.differentiable, special and special.function), case)
    return frozenset(found.values())


def _drawn(case: Case, mesh: Mesh, most: int | None) -> tuple[Config, ...]:
    chosen = configs(rule_of(case.op), mesh)
    return chosen if most is None or len(chosen) <= most else tuple(random.Random(case.seed).sample(chosen, most))


def test_every_operator_type_has_a_case() -> None:
    # What composite operators are made of is held against one device in tests/composite.
    assert set(_RULES) == {case.type for case in CASES} | {*COMPOSITES, VALUE_SHAPED}
    assert len({case.label for case in CASES}) == len(CASES)


def test_extents_that_do_not_divide_are_split() -> None:
    uneven = [
        case
        for case in CASES
        for config in configs(rule_of(case.op), Mesh.of(2))
        for tensor, layout in zip(case.op.outputs, interface_of(rule_of(case.op), config).results, strict=True)
        if not layout.is_even(tensor.shape)
    ]
    assert len(uneven) > len(CASES) // 2


@pytest.mark.parametrize("case", CASES, ids=str)
def test_split_operators_equal_unsplit_ones(case: Case, request: pytest.FixtureRequest) -> None:
    # How many configs are tried at most, None for all.
    drawn: dict[Mesh, int | None] = {SMALLEST: 1}
    if request.config.getoption("--all"):
        drawn = dict.fromkeys((SMALLEST, *OTHERS))
    elif case in _firsts():
        is_compiled = operators._is_convolution_in_groups(case.op) and not operators._is_depthwise(case.op)
        drawn = {SMALLEST: COMPILED if is_compiled else None, OTHERS[CASES.index(case) % len(OTHERS)]: 1}
    wrong = []
    for mesh, most in drawn.items():
        wrong += validate(case, mesh, _drawn(case, mesh, most))
    assert not wrong, f"{len(wrong)} faults:\n" + "\n".join(wrong[:20])


@pytest.mark.parametrize("case", [case for case in CASES if "BatchNorm" in case.type], ids=str)
def test_one_device_is_as_far_from_64_bit_numbers_as_split_ones_may_be(case: Case) -> None:
    """The tolerance of batch normalisation, whose kernels have 32 bits, is that of one device."""
    image, scale, offset, mean, variance = (tf.constant(value, tf.float64) for value in case.values)
    channel = 1 if case.op.attrs["data_format"] == "NCHW" else 3
    reduced = [i for i in range(4) if i != channel]
    shape = [-1 if i == channel else 1 for i in range(4)]
    truth = truth_of(case)
    with tf.GradientTape() as tape:
        tape.watch([image, scale, offset])
        if case.op.attrs["is_training"]:
            mean, variance = tf.nn.moments(image, reduced)
        mean, variance = tf.reshape(mean, shape), tf.reshape(variance, shape)
        factor = tf.reshape(scale, shape) * tf.math.rsqrt(variance + case.op.attrs["epsilon"])
        normal = (image - mean) * factor + tf.reshape(offset, shape)
        loss = tf.reduce_sum(normal * tf.cast(truth.weights[0], tf.float64))
    pairs = [(truth.results[0], normal)]
    pairs += zip(truth.gradients, tape.gradient(loss, [image, scale, offset]), strict=False)
    for found, expected in pairs:
        assert found is not None and expected is not None
        assert np.abs(found - expected.numpy()).max() <= case.tolerance * max(1, np.abs(expected).max())


# Faults that the validator must see.


def _faults_of(label: str, mesh: Mesh, rule: Rule) -> list[str]:
    return validate(case_of(label), mesh, configs(rule, mesh), rule)


@contextmanager
def _without_lowering(op_type: str) -> Iterator[None]:
    """The faulty lowering runs the TensorFlow operator on local operands."""
    assert operators.special_lowering(op_type) is not None
    with mock.patch.dict(operators._SPECIAL):
        del operators._SPECIAL[op_type]
        yield


@pytest.mark.parametrize(
    ("label", "claim", "said"),
    [("Relu", lambda rule: {"linear": ((0,),)}, {"+0:a"}),
     ("Max", lambda rule: {"inner": frozenset(), "completed": rule.inner}, {"replicas"}),
     ("Sum", lambda rule: {"completed": frozenset(rule.extents)}, {"replicas"}),
     ("Conv2D/SAME", lambda rule: {"halos": {}}, {"config h:a", "config w:a"})],
)  # fmt: skip
def test_a_rule_that_claims_too_much_is_caught(label: str, claim: Callable[[Rule], Any], said: set[str]) -> None:
    rule = rule_of(case_of(label).op)
    faults = "\n".join(_faults_of(label, Mesh.of(2), replace(rule, **claim(rule))))
    assert all(each in faults for each in said)


@pytest.mark.parametrize(
    ("label", "said"),
    [("Mean", {"result 0", "gradient"}), ("Mean/all", {"result 0", "gradient"}),
     ("FusedBatchNormV3/training", {"config n:a"}), ("MatrixBandPart", {"config m:a", "config n:a"})],
)  # fmt: skip
def test_an_operator_on_each_block_alone_is_caught(label: str, said: set[str]) -> None:
    with _without_lowering(label.partition("/")[0]):
        faults = "\n".join(_faults_of(label, Mesh.of(2), rule_of(case_of(label).op)))
    assert all(each in faults for each in said) and "config c:a" not in faults


@pytest.mark.parametrize("label", ["MatMul", "AddV2/missing dimension", "BiasAdd", "Conv2D/SAME"])
def test_gradients_of_replicas_that_are_not_summed_are_caught(label: str) -> None:
    def nothing_varies(rule: Rule, config: Config) -> Interface:
        interface = interface_of(rule, config)
        operands = tuple(sharding and OperandSharding(sharding.layout, ()) for sharding in interface.operands)
        return Interface(operands, interface.results)

    case, mesh = case_of(label), Mesh.of(2)
    faults = validate(case, mesh, configs(rule_of(case.op), mesh), choose_interface=nothing_varies)
    assert faults and all("gradient" in fault for fault in faults)


def test_a_swapped_pattern_is_caught() -> None:
    rule = rule_of(case_of("MatMul/even").op)
    claimed = replace(rule, operands=((("m",), ("k",)), (("n",), ("k",))))
    with pytest.raises(ValueError, match="Dimensions must be equal"):
        _faults_of("MatMul/even", Mesh.of(2), claimed)


def test_registering_a_type_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="MatMul has a rule already"):
        registry.op_rule("MatMul")(lambda op: "")


def test_registering_a_lowering_twice_is_refused() -> None:
    assert operators.special_lowering("Softmax") is not None
    with pytest.raises(ValueError, match="Softmax has a special lowering already"):
        operators.lowering("Softmax")(lambda job, operands: [])


def test_of_what_a_softmax_reduces_its_sum_alone_has_a_gradient() -> None:
    op = case_of("Softmax").op
    config = next(config for config in configs(rule_of(op), SMALLEST) if config.axes_of("c"))
    inner = inner_reshardings(op, rule_of(op), config, [{0}])
    assert [(each.reduction, bool(each.sharding.unreduced)) for each in inner] == [("max", False), ("sum", True)]
