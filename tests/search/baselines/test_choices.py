"""The splits of each baseline, against its definition and against enumeration."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from helpers.large import first

from tensoropt.ft import search
from tensoropt.ft.pareto import reduce_unsorted
from tensoropt.ir.graph import PLACEHOLDER, VARIABLE
from tensoropt.rules.rule import NONE, Config, why_invalid
from tensoropt.search.baselines import data_parallel, mesh_tensorflow, one_weird_trick, tofu
from tensoropt.search.baselines.dimensions import batch_dimension, logical_dimensions
from tensoropt.search.baselines.mesh_tensorflow import MOST_ASSIGNMENTS, Naming
from tensoropt.search.task import BaselineTask

from .models import baseline_of, strategies_of, with_configs


def small_task(name="lenet5", cluster="v100-1x2", parallelism=2):
    found = baseline_of(name, "data-parallel", cluster, parallelism)
    return BaselineTask(found.costing, found.mesh, "compact")


def degrees(config: Config) -> dict[str, int]:
    return {name: config.degree(name) for name in config.assignment if name != NONE}


@pytest.mark.parametrize(("name", "flattened"), [("transformer", 16), ("rnn", 12), ("wide_resnet", 4)])
def test_the_batch_is_followed_to_the_loss(name, flattened):
    task = small_task(name)
    batch = batch_dimension(task.operators, task.rules, logical_dimensions(task.operators, task.rules))
    factors = dict(batch.members)
    for op in task.operators:
        if op.type == PLACEHOLDER:
            assert op.name in factors
        if op.type == "MatMul":
            assert factors[op.name] == "m"
        if op.type in ("Conv2D", "SparseSoftmaxCrossEntropyWithLogits"):
            assert factors[op.name] == "n"
        if op.type == "SparseSoftmaxCrossEntropyWithLogits":
            assert task.rules[op.name].extents["n"] == flattened
        if op.type == VARIABLE:
            assert op.name not in factors


def test_data_parallelism_splits_the_batch_over_all_devices_and_no_parameter():
    task = small_task("wide_resnet", "v100-1x4", 4)
    found = data_parallel.configs(task)
    kinds = Counter()
    for op in task.operators:
        if op.type == VARIABLE:
            assert not found[op.name].used_axes
        if op.type in ("Conv2D", "MatMul", "FusedBatchNormV3", "Relu"):
            assert set(degrees(found[op.name]).values()) == {4}
            kinds[op.type] += 1
    assert kinds["Conv2D"] > 5


def test_a_short_batch_is_split_over_as_many_axes_as_it_can_be():
    task = small_task("inception_v3", "v100-1x4", 4)
    found = data_parallel.configs(task)
    assert {tuple(degrees(found[op.name]).values()) for op in task.operators if op.type == "Conv2D"} == {(2,)}


def test_one_weird_trick_splits_dense_layers_by_output_and_all_else_by_batch():
    task = small_task("lenet5", "v100-1x4", 4)
    found, others = one_weird_trick.configs(task), data_parallel.configs(task)
    dense = [op for op in task.operators if op.type == "MatMul"]
    parameters = {op.inputs[1].name for op in dense}
    assert len(dense) == 3
    for op in task.operators:
        if op in dense:
            extent = task.rules[op.name].extents["n"]
            assert degrees(found[op.name]) == {"n": 4 if extent >= 4 else 2}
        elif op.type == VARIABLE and op.result.name in parameters:
            assert set(degrees(found[op.name])) == {"d1"}
        else:
            assert found[op.name] == others[op.name]


def test_tofu_leaves_no_axis_idle_that_an_operator_could_use():
    for name in ("lenet5", "rnn", "transformer"):
        (configs,) = strategies_of(baseline_of(name, "tofu", "v100-1x2", 2))
        task = small_task(name)
        assert any(config.used_axes for config in configs.values())
        for op in task.operators:
            config = configs[op.name]
            for axis in task.mesh.axes:
                if config.assignment[axis] == NONE:
                    assert tofu.longer(task.rules[op.name], config, axis) == (config,)


def test_one_round_of_tofu_is_the_least_memory_of_all_strategies_that_use_the_axis():
    task = small_task()
    (answer_mem,), (answer_time,) = (lambda f: (f.mem_bytes, f.time_ns))(tofu.search(task).found)
    choices = {}
    for op in task.operators:
        rule = task.rules[op.name]
        every = [Config(task.mesh, (factor,)) for factor in rule.splittable]
        choices[op.name] = tuple(c for c in every if not why_invalid(rule, c)) or (Config(task.mesh, (NONE,)),)
    found = search(task.among(choices).problem)
    assert found.exact
    assert (answer_mem, answer_time) == (found.mem_bytes[0], found.time_ns[0])


@pytest.mark.parametrize(
    ("name", "cluster", "parallelism", "most"),
    first(2, [("lenet5", "v100-1x2", 2, 100), ("rnn", "v100-1x4", 4, 20), ("lenet5", "v100-1x2", 2, 20),
              ("rnn", "v100-1x4", 4, 100)]),
)
def test_mesh_tensorflow_is_the_frontier_of_all_assignments(name, cluster, parallelism, most):
    task = small_task(name, cluster, parallelism)
    naming = Naming.of(task, most)
    assert most / 10 <= len(naming.assigned) <= most
    answer = mesh_tensorflow.search(task, most)
    mem, time_ns = [], []
    for assignment in range(len(naming.assigned)):
        configs = {op.name: naming.config(task, op.name, assignment) for op in task.operators}
        found = search(with_configs(answer.built, configs))
        mem.append(found.mem_bytes)
        time_ns.append(found.time_ns)
    every = np.concatenate(mem), np.concatenate(time_ns)
    kept = reduce_unsorted(*every)
    assert answer.found.mem_bytes.tolist() == every[0][kept].tolist()
    assert answer.found.time_ns.tolist() == every[1][kept].tolist()


def test_assignments_are_all_that_have_no_conflict():
    task = small_task("lenet5", "v100-1x4", 4)
    naming = Naming.of(task, 1000)
    n_names = naming.assigned.shape[1]
    assert len(np.unique(naming.assigned, axis=0)) == len(naming.assigned)
    together = {
        pair for of_operator in naming.factors.values() for pair in itertools.combinations([c for c, _ in of_operator], 2)
    }
    fit = [[_fits(task, members, task.mesh.size_of(run)) for run in naming.runs] for members in _members(naming)]
    expected = set()
    for indices in itertools.product(range(len(naming.runs)), repeat=n_names):
        runs = [naming.runs[index] for index in indices]
        used = sorted({run for run in runs if run})
        overlapping = any(set(a) & set(b) for a, b in itertools.combinations(used, 2))
        meeting = any(runs[a] and runs[a] == runs[b] for a, b in together)
        fitting = all(fit[c][index] for c, index in enumerate(indices))
        if fitting and not overlapping and not meeting:
            expected.add(indices)
    assert {tuple(row) for row in naming.assigned.tolist()} == expected


def _members(naming):
    for column in range(naming.assigned.shape[1]):
        yield [(name, factor) for name, of in naming.factors.items() for c, factor in of if c == column]


def _fits(task, members, degree):
    def fits(name, factor):
        extent, is_even = task.rules[name].extents[factor], factor in task.rules[name].even
        return degree <= extent and not (is_even and extent % degree)

    return all(fits(*member) for member in members)


def test_under_mesh_tensorflow_a_dimension_is_split_the_same_way_everywhere():
    task = small_task("lenet5", "v100-1x4", 4)
    naming = Naming.of(task, MOST_ASSIGNMENTS)
    found = baseline_of("lenet5", "mesh-tensorflow", "v100-1x4", 4)
    kinds = set()
    for configs in strategies_of(found):
        for members in _members(naming):
            axes = {configs[name].axes_of(factor) for name, factor in members}
            # An operator whose rule can't split it there leaves it whole.
            assert len(axes - {()}) <= 1
            kinds |= axes
    assert len(kinds) > 1
