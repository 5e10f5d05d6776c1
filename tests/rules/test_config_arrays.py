"""Configs in arrays: every rule's interfaces and degrees are those that each config has by itself."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tensoropt.reschedule.cheapest.layout_numbers import LayoutNumbers
from tensoropt.reschedule.mesh import Mesh
from tensoropt.rules.config_arrays import ConfigArrays, Interfaces
from tensoropt.rules.configs import configs
from tensoropt.rules.registry import rule_of
from tensoropt.rules.rule import interface_of
from tensoropt.rules.shardings import Shardings, first_seen

from .cases import CASES

MOST_CONFIGS, SOME = 12, 10
"""How many configs of a case are drawn, and every how manieth case is by default."""


@pytest.mark.parametrize("mesh", [Mesh.of(2, 3), Mesh.of(2, 2, 2)], ids=str)
def test_interfaces_are_those_of_each_config(mesh: Mesh, everything: bool) -> None:
    numbers = LayoutNumbers(mesh)
    for case in CASES if everything else CASES[:: SOME]:
        rule = rule_of(case.op)
        found = configs(rule, mesh)
        found = tuple(random.Random(case.seed).sample(found, min(len(found), MOST_CONFIGS)))
        arrays = ConfigArrays.of(rule, found)
        assert list(Interfaces(arrays, numbers)) == [interface_of(rule, config) for config in found], case.label
        blocks = [tuple(-(-extent // config.degree(name)) for name, extent in rule.extents.items()) for config in found]
        assert arrays.local_points().tolist() == [*map(rule.points, blocks)]
        assert arrays.are_exchanged().tolist() == [bool(rule.exchanged(config)) for config in found]
        for name in rule.extents:
            assert arrays.degree(name).tolist() == [config.degree(name) for config in found]


def test_kinds_of_configs_differ_in_the_factors_that_are_asked_for() -> None:
    (case,) = (case for case in CASES if case.label == "MatMul")
    rule = rule_of(case.op)
    arrays = ConfigArrays.of(rule, configs(rule, Mesh.of(2, 2)))
    name = next(iter(rule.extents))
    first, kind = arrays.distinct_in([name])
    rows = [config.axes_of(name) for config in arrays.configs]
    assert [rows[first[number]] for number in kind.tolist()] == rows and len(set(rows)) == len(first)


def test_shardings_are_a_sequence() -> None:
    numbers = LayoutNumbers(Mesh.of(2, 2))
    (case,) = (case for case in CASES if case.label == "MatMul")
    given = [interface_of(rule_of(case.op), config).operands[0] for config in configs(rule_of(case.op), numbers.mesh)]
    shardings = [each for each in given if each is not None]
    found = Shardings.of(numbers, shardings)
    assert list(found) == shardings
    assert list(Shardings.of_codes(numbers, found.codes)) == shardings
    others = LayoutNumbers(numbers.mesh)
    others.of(sharding.layout for sharding in reversed(shardings))
    assert list(found.in_numbers(others)) == shardings and found.in_numbers(numbers) is found
    assert [shardings[i] for i in first_seen(found.codes)[0].tolist()] == list(dict.fromkeys(shardings))


def test_first_seen_keeps_the_order() -> None:
    first, kind = first_seen(np.array([5, 3, 5, 9, 3], np.int64))
    assert first.tolist() == [0, 1, 3] and kind.tolist() == [0, 1, 0, 2, 1]
