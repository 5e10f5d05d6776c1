"""An independent judge: the least time within a memory budget by an integer program for HiGHS, from the Problem alone.

One binary variable per state of a node and one per allowed pair of states of an edge; a node takes one state, an edge the
pair of its nodes' states. Memory is at most the budget, time is minimised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from helpers.large import first
from helpers.zoo import Built, cnn, mlp, record
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from tensoropt.costs.operator_costs import costing_of
from tensoropt.ft import INFEASIBLE, Budget, Problem, search
from tensoropt.profiling import hardware
from tensoropt.search.problem.builder import ProblemBuilder
from tensoropt.sharding.model import Model

from .problems import Costs, build, chain_pairs, resnet_pairs

N_BUDGETS, MOST_BUDGETS = 6, 20


@dataclass(frozen=True)
class IntegerProgram:
    """min time x  subject to  equal x = right, mem x <= budget, x binary."""

    mem: np.ndarray
    time: np.ndarray
    equal: coo_array
    right: np.ndarray

    @classmethod
    def of(cls, problem: Problem) -> IntegerProgram:
        mem, time, rows, columns, values, right = [], [], [], [], [], []
        first = []  # variable of each node's state 0
        for node in problem.nodes:
            first.append(len(mem))
            rows += [len(right)] * node.n_states
            columns += range(len(mem), len(mem) + node.n_states)
            values += [1] * node.n_states
            right.append(1)
            mem += node.mem_bytes.tolist()
            time += node.time_ns.tolist()
        for edge in problem.edges:
            pairs = np.argwhere((edge.mem_bytes < INFEASIBLE) & (edge.time_ns < INFEASIBLE))
            numbers = len(mem) + np.arange(len(pairs))
            mem += edge.mem_bytes[tuple(pairs.T)].tolist()
            time += edge.time_ns[tuple(pairs.T)].tolist()
            for end, side in ((edge.source, 0), (edge.target, 1)):
                for state in range(problem.nodes[end].n_states):
                    those = numbers[pairs[:, side] == state]
                    rows += [len(right)] * (len(those) + 1)
                    columns += [*those.tolist(), first[end] + state]
                    values += [1] * len(those) + [-1]
                    right.append(0)
        equal = coo_array((values, (rows, columns)), shape=(len(right), len(mem)))
        return cls(np.array(mem), np.array(time), equal, np.array(right))

    def least_time(self, budget: int) -> int | None:
        allowed = (self.mem < INFEASIBLE) & (self.time < INFEASIBLE)
        mem, time = np.where(allowed, self.mem, 0), np.where(allowed, self.time, 0)
        constraints = [LinearConstraint(self.equal, self.right, self.right), LinearConstraint(mem[None], ub=budget)]
        result = milp(
            time, constraints=constraints, integrality=np.ones(len(mem)), bounds=Bounds(0, allowed.astype(float)),
            options={"mip_rel_gap": 0.0},
        )  # fmt: skip
        return None if result.x is None else int(time[result.x > 0.5].sum())


def assert_judged(problem: Problem, everything: bool, budget: Budget | None = None) -> bool:
    """Hold a frontier against the integer program, as equal if it is exact, else as a bound on either side."""
    frontier = search(problem, budget=budget)
    program = IntegerProgram.of(problem)
    low, high = int(frontier.mem_bytes[0]), int(frontier.mem_bytes[-1])
    ends = np.linspace(low, high + (high - low) // 10, MOST_BUDGETS if everything else N_BUDGETS)
    limits = np.unique(ends.astype(np.int64)).tolist()
    for limit in [*([low - 1] if frontier.exact else []), *limits]:
        point, least = frontier.at(limit), program.least_time(limit)
        if frontier.bound is None:
            assert least == (None if point is None else frontier.time_ns[point])
        else:
            assert point is not None
            assert frontier.bound.least_time(np.array([limit]))[0] <= least <= frontier.time_ns[point]
    return frontier.exact


@pytest.mark.parametrize("seed", range(4))
def test_random_problems(seed: int, everything: bool) -> None:
    rng = np.random.default_rng(seed)
    pairs = resnet_pairs(2) if seed % 2 else [*chain_pairs(9), (0, 4), (2, 7)]
    assert assert_judged(build(rng, [4] * 9, pairs, Costs(200, infeasible=0.1)), everything)


def problem_of(function: Callable[[], Built], n_devices: int) -> Problem:
    model: Model = record(function, "momentum").model
    described = hardware.named("v100-2x8")
    mesh = described.mesh(n_devices)
    return ProblemBuilder(costing_of(model, described, mesh), mesh).build().problem


def attention_block(api: Any = tf.compat.v1) -> Built:
    """Queries, keys and values of one head, and a residual edge."""
    x = api.placeholder(api.float64, [4, 6, 8], name="x")
    query, key, value = (api.get_variable(name, [8, 8], api.float64) for name in ("query", "key", "value"))
    scores = api.einsum("bqi,bki->bqk", api.einsum("bli,ij->blj", x, query), api.einsum("bli,ij->blj", x, key))
    mixed = api.matmul(api.nn.softmax(scores), api.einsum("bli,ij->blj", x, value))
    loss = api.reduce_mean(api.square(x + mixed))
    return Built(loss, {x: tuple(np.random.default_rng(0).normal(size=(3, 4, 6, 8)))}, (loss,))


@pytest.mark.parametrize("function", first(2, [mlp, attention_block, cnn]), ids=lambda function: function.__name__)
def test_recorded_models(function: Callable[[], Built], everything: bool) -> None:
    assert assert_judged(problem_of(function, 2), everything, Budget(seconds=60.0))


def test_what_is_not_exact_lies_between_its_bounds(everything: bool) -> None:
    pairs = [(i, j) for i in range(7) for j in range(i)]
    problem = build(np.random.default_rng(0), [4] * 7, pairs, Costs(200, infeasible=0.1))
    assert not assert_judged(problem, everything, Budget(max_table_cells=20, seconds=0))
