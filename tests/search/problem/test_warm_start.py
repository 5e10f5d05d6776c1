"""A search with more choices begins with what one with less found, in its own states."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.large import first
from helpers.searches import find_frontier
from remat.small import HARDWARE, SMALL, settle_copies

from tensoropt.costs.operator_costs import costing_of
from tensoropt.ft import Budget, search
from tensoropt.ft.problem import INFEASIBLE
from tensoropt.search.problem.builder import ProblemBuilder
from tensoropt.search.problem.choices import Choices
from tensoropt.search.problem.strategy_problem import StrategyProblem
from tensoropt.search.search_problem import adopted
from tensoropt.sharding.model import Model
from tensoropt.tools.offline import record


def problems(model: Model, space: str, choices: Choices) -> tuple[StrategyProblem, StrategyProblem | None]:
    mesh = HARDWARE.mesh(4)
    costing = costing_of(model, HARDWARE, mesh)
    builder = ProblemBuilder(costing, mesh, space, choices=choices)
    return builder.build(), builder.build_rematerializing()


@pytest.mark.parametrize(("space", "is_from_plain"), first(2, [
    ("full", True), ("compact", False), ("full", False), ("compact", True)
]))  # fmt: skip
@pytest.mark.parametrize("name", first(2, ["cnn", "attention", "mlp", "vgg16"]))
def test_strategies_mean_and_cost_the_same(name: str, space: str, is_from_plain: bool) -> None:
    """A problem without rematerialization, and one without regathering, either."""
    model = record(SMALL[name], name).model
    plain, built = problems(model, space, Choices(reuse=True))
    built = built or plain
    other = plain if is_from_plain else problems(model, space, Choices(reuse=False))[0]
    found = search(other.problem, budget=Budget(seconds=1.0))
    strategies = adopted(built, other, found.strategies)
    costs = [built.problem.cost(strategy.tolist()) for strategy in strategies]
    assert costs == list(zip(found.mem_bytes.tolist(), found.time_ns.tolist(), strict=True))
    assert not built.missing_bytes(strategies).any()
    for before, after in zip(found.strategies[::7], strategies[::7], strict=True):
        meant, means = other.strategy(before), built.strategy(after)
        assert means.configs == meant.configs and means.shared == meant.shared and not means.rematerialized


@pytest.mark.parametrize("name", first(2, ["cnn", "attention", "vgg16"]))
def test_without_rematerialization_no_memory_is_transient(name: str) -> None:
    """Adopted strategies mean the same whatever copies are regathered."""
    plain, built = problems(record(SMALL[name], name).model, "full", Choices(reuse=True))
    rng, tried = np.random.default_rng(0), []
    for _ in range(300):
        states = np.array([rng.integers(node.n_states) for node in plain.problem.nodes], np.int32)
        if settle_copies(plain, states, rng):
            tried.append(states)
    assert len(tried) >= 100
    before, strategies = np.stack(tried), adopted(built, plain, np.stack(tried))
    for states, state in zip(before, strategies, strict=True):
        was, now = plain.problem.cost(states.tolist()), built.problem.cost(state.tolist())
        assert now[0] <= was[0] < INFEASIBLE and now[1] < INFEASIBLE
    assert not built.missing_bytes(strategies).any()


@pytest.mark.parametrize("name", first(1, ["cnn", "attention", "vgg16"]))
def test_no_point_is_above_one_of_a_search_without_rematerialization(name: str) -> None:
    model = record(SMALL[name], name).model
    with_all, without = (
        find_frontier(model, HARDWARE, 4, budget=Budget(seconds=0.5), without=each).certified for each in ((), ("remat",))
    )
    place = np.searchsorted(with_all.mem_bytes, without.mem_bytes, side="right") - 1
    assert (place >= 0).all()
    assert (with_all.time_ns[place] <= without.time_ns).all()
