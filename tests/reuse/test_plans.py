"""Plans and frontiers say which copies are regathered, and run; a search can do without."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from helpers.searches import Plans, find_frontier, plans_of

import tensoropt
from tensoropt import zoo
from tensoropt.common.errors import InputError
from tensoropt.ft import INFEASIBLE, Frontier
from tensoropt.plan.build import check_reshardings, cost_entries
from tensoropt.plan.plan import Plan
from tensoropt.profiling.hardware import named
from tensoropt.sharding.resharding import PlainCosts
from tensoropt.tools.cli.main import main
from tensoropt.tools.offline import record

CLUSTER = ["zoo:lenet5", "--cluster", "v100-1x4", "--parallelism", "4"]


@pytest.fixture(scope="module")
def found() -> Plans:
    model = record(lambda: zoo.lenet5(batch=8), "lenet5").model
    return plans_of(find_frontier(model, named("v100-1x4"), 4, without=["remat"]))


def test_a_plan_reads_back_as_it_was_written(found: Plans, tmp_path: Path) -> None:
    plan = found.smallest()
    assert plan.stages[0].strategy.regathered
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded.stages[0].strategy.regathered == plan.stages[0].strategy.regathered
    assert loaded.reshardings == plan.reshardings
    view = found.without_stages[0].model.view(loaded.stages[0].strategy)
    check_reshardings(view, loaded.stages[0])
    path_finder = loaded.stages[0].path_finder(PlainCosts())
    executed = sum(
        path_finder.paths(entry.resharding).n_collectives
        + (path_finder.paths(entry.resharding).forward.n_collectives if entry.is_regathered else 0)
        for entry in cost_entries(view)
    )
    assert loaded.n_collectives == executed


def test_any_strategy_survives_being_a_plan(everything: bool) -> None:
    """An operator that takes a tensor twice may read two copies of its shared copy, one made by communication, one not."""

    def squared() -> tf.Tensor:
        x = tf.compat.v1.placeholder(tf.float32, [16, 16])
        w = tf.compat.v1.get_variable("w", [16, 16])
        h = tf.sin(tf.tanh(tf.matmul(x, w)) + tf.matmul(x, w))
        return tf.reduce_mean(tf.square(tf.matmul(h, h)))

    model, hardware = record(squared, "squared").model, named("v100-1x4")
    frontier = find_frontier(model, hardware, 4, space="full")
    built, rng, n_regathered = frontier.built, np.random.default_rng(0), 0
    n = 150 if everything else 20
    for _ in range(n):
        states = np.array([rng.integers(node.n_states) for node in built.problem.nodes], np.int32)
        for choice in built.choices:
            states[choice.node] = rng.choice(np.flatnonzero(choice.is_regathered))
        for edge in built.problem.edges:
            # The choices about a copy depend on how its source is left.
            possible = np.flatnonzero(edge.time_ns[states[edge.source]] < INFEASIBLE)
            if states[edge.target] not in possible:
                states[edge.target] = rng.choice(possible)
        point = Frontier(np.ones(1, np.int64), np.ones(1, np.int64), states[None], {}, "random")
        plan = plans_of(replace(frontier, found=point)).plan(0)
        check_reshardings(model.view(plan.stages[0].strategy), plan.stages[0])
        n_regathered += bool(plan.stages[0].strategy.regathered)
    assert n_regathered > n // 5


def test_a_plan_says_what_is_regathered_and_its_cost(found: Plans) -> None:
    plan = found.smallest()
    told = plan.explain().split("copies regathered in the backward pass")[1].split("\n\n")[0]
    for resharding in plan.reshardings:
        if resharding.is_regathered:
            assert (
                f"{resharding.tensor} to {resharding.consumers[0]}" in told and f"{resharding.regathering_us:,.1f}" in told
            )
            assert resharding.copy_bytes > 0 and 0 < resharding.regathering_us < resharding.time_us
    assert "copies regathered" not in found.fastest().explain()


def test_a_frontier_file_has_regathering_for_every_point(found: Plans, tmp_path: Path) -> None:
    found.save(tmp_path / "frontier.json")
    loaded = tensoropt.load_frontier(tmp_path / "frontier.json")
    for point in range(0, len(found), 5):
        assert loaded.plan(point).to_json() == found.plan(point).to_json()


def test_a_plan_that_regathers_a_copy_that_nothing_reads_is_refused(found: Plans) -> None:
    plan = found.smallest()
    unread = next(i for i, each in enumerate(plan.reshardings) if not each.copy_bytes and each.forward.steps)
    reshardings = list(plan.reshardings)
    reshardings[unread] = replace(reshardings[unread], is_regathered=True)
    changed = replace(plan.stages[0], reshardings=tuple(reshardings))
    with pytest.raises(InputError, match="it was changed: find the strategy again"):
        check_reshardings(found.without_stages[0].model.view(changed.strategy), changed)


def test_a_search_can_do_without(found: Plans, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    memory = {}
    for without in ([], ["--without", "reuse"]):
        file = tmp_path / "found.json"
        assert main(["search", *CLUSTER, "--json", str(file), *without]) == 0
        memory[len(without)] = json.loads(file.read_text())["points"][0]["sum_bytes"]
    assert memory[0] < memory[2]
    capsys.readouterr()
    assert main(["search", *CLUSTER, "--without", "reuse,rest"]) == 2
    expected = "tensoropt: unknown choice 'rest'; a search can do without 'reuse', 'remat', 'zero', 'accumulate', 'stages'\n"
    assert capsys.readouterr().err == expected


def test_the_api_can_do_without() -> None:
    tensoropt.init(hardware="v100-1x4", seed=1)
    tensoropt.GradientDescentOptimizer(0.1).minimize(zoo.lenet5(batch=8))
    plan = tensoropt.find_strategy(without=["reuse"]).frontier.smallest()
    assert not plan.stages[0].strategy.regathered
    for wrong in ("reuse", ["reuse", "rest"], 3):
        with pytest.raises(InputError, match=r"unknown choice|without= takes a list"):
            tensoropt.find_strategy(without=wrong)  # type: ignore[arg-type]
